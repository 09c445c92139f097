//! Divides one total of workspace among all kernels of a network so that their times add up to the least.

use tightfit_conv::Backend;
use tightfit_conv::candidate::Limit;
use tightfit_network::built_in;
use tightfit_profile::answer::{Request, optimize};
use tightfit_profile::survey::{Env, Sizes};
use tightfit_profile::{Recording, Replay, Selection};
use tightfit_units::{Bytes, Error};

const PROFILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/recorded/h200-legacy-resnet18.jsonl.gz");

fn main() -> Result<(), Error> {
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(Replay::of(Recording::read(PROFILE.as_ref())?)?)];
    let selection = Selection::new(built_in("resnet18")?, Some(128));
    let mut request = Request { sizes: Sizes::PowerOfTwo, ..Request::new(selection, Limit::One(Bytes::ZERO)) };

    for total in [64, 256, 1024].map(Bytes::mib) {
        request.limit = Limit::Total(total);
        match optimize(&request, &mut backends, &Env::default()) {
            Ok(found) => println!("{total}: {}, at most {:.2}% from the least", found.time(), found.gap * 100.0),
            // The error says how much would be enough.
            Err(error) if error.is_over_limit() => println!("{total}: {error}"),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
