//! Allots all committed instances, checks every answer, and prints for each shape the time and the worst distance from the proven bound.

use std::time::Instant;

use tightfit_conv::optimize::{SearchOptions, Stop, allot, check};
use tightfit_test_support::instances;

fn main() -> Result<(), tightfit_units::Error> {
    println!(
        "{:<16} {:>9} {:>9} {:>9}   {:>7}  {:>9}",
        "shape", "median ms", "p90 ms", "worst ms", "proven", "worst gap"
    );
    for shape in instances::SHAPES {
        let (mut times, mut proven, mut gap) = (Vec::new(), 0, 0_f64);
        for instance in instances::read(shape) {
            let start = Instant::now();
            let found = allot(&instance.kernels, instance.total, &SearchOptions::default())?;
            let ms = start.elapsed().as_secs_f64() * 1e3;
            let violations = check::check_allotment(&instance.kernels, instance.total, &found);
            assert!(violations.is_empty(), "{}: {violations:?}", instance.name);
            times.push(ms);
            proven += usize::from(found.stop == Stop::Proven);
            gap = gap.max(found.gap());
        }
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
        let solved = format!("{proven}/{}", times.len());
        println!("{shape:<16} {:>9.3} {:>9.3} {:>9.3}   {solved:>7}  {gap:>9.1e}", at(0.5), at(0.9), at(1.0));
    }
    Ok(())
}
