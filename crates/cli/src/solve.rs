//! From the options to measured and optimized kernels: shared by `optimize`, `profile` and `verify`.

use tightfit_conv::Problem;
use tightfit_network::distinct;
use tightfit_profile::answer::{self, Optimized, Request};
use tightfit_profile::survey::{Scope, Silent, Survey};
use tightfit_profile::{Model, Selection};
use tightfit_units::Bytes;

use crate::estimate::{Work, foresee};
use crate::failure::Failure;
use crate::options::{Common, RequestOptions, SelectionOptions};
use crate::progress::Measuring;
use crate::session::{Session, env, model, must_support, report_spent};

/// The convolutions that the options select.
///
/// # Errors
/// The errors of finding the network; [`Failure::Usage`] without a mini-batch, if the network states none.
pub fn selection(options: &SelectionOptions, common: &Common) -> Result<Selection, Failure> {
    let model = model(&options.network, common)?;
    if let (None, Model::Network(network)) = (options.batch, &model)
        && !network.has_batches()
    {
        let name = network.name();
        return Err(Failure::Usage(format!("{name} needs a mini-batch size; set it with --batch N")));
    }
    Ok(Selection {
        model,
        batch: options.batch,
        operations: options.operations.clone(),
        layers: options.layers.clone(),
        types: common.types,
        layout: common.layout.unwrap_or_default(),
    })
}

/// The request in the options.
///
/// # Errors
/// As [`selection`], and the errors of the limit and the sizes.
pub fn request(options: &RequestOptions, common: &Common) -> Result<Request, Failure> {
    let limit = options.bound.limit()?;
    Ok(Request {
        sizes: options.sizes.get()?,
        divide: options.divide.divide.unwrap_or_default(),
        baseline: !options.no_baseline,
        deterministic: common.deterministic,
        exact_class: common.exact_class,
        ..Request::new(selection(&options.selection, common)?, limit)
    })
}

/// Measures and optimizes, and shows progress. `beside` is the memory that the command takes in addition to its
/// measuring buffers.
///
/// # Errors
/// As [`foresee`] and [`answer::optimize`].
pub fn optimize(
    request: &Request,
    beside: Bytes,
    session: &mut Session,
    common: &Common,
) -> Result<Optimized, Failure> {
    let bar = announce(&request.selection, &request.scope(), beside, session)?;
    let Session { backends, cache, stop } = session;
    let optimized = answer::optimize(request, backends, &env(cache, stop, &bar));
    drop(bar);
    let optimized = optimized?;
    report_spent(&optimized.profiling.spent, common);
    Ok(optimized)
}

/// Measures a selection, and shows progress.
///
/// # Errors
/// As [`foresee`] and [`answer::profile`].
pub fn profile(
    selection: &Selection,
    scope: &Scope,
    session: &mut Session,
    common: &Common,
) -> Result<Survey, Failure> {
    let bar = announce(selection, scope, Bytes::ZERO, session)?;
    let Session { backends, cache, stop } = session;
    let found = answer::profile(selection, scope, backends, &env(cache, stop, &bar));
    drop(bar);
    let found = found?;
    report_spent(&found.spent, common);
    Ok(found)
}

/// Announces long measuring, and starts its progress bar.
fn announce(selection: &Selection, scope: &Scope, beside: Bytes, session: &mut Session) -> Result<Measuring, Failure> {
    let kernels = selection.kernels()?;
    let problems: Vec<Problem> = distinct(&kernels).into_iter().map(|(problem, _)| problem).collect();
    must_support(session.device(), &problems)?;
    let work = Work {
        network: selection.model.name(),
        problems: &problems,
        beside,
        choices: "use a smaller --batch or limit to measure less, or --backend replay:FILE to measure nothing",
    };
    let Session { backends, cache, stop } = session;
    let expected = foresee(&work, scope, backends[0].as_mut(), &env(cache, stop, &Silent))?;
    Ok(Measuring::new(&kernels, expected))
}
