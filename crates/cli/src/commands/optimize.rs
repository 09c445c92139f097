//! `tightfit optimize NETWORK`

use tightfit_conv::candidate::Limit;
use tightfit_profile::answer::{Optimized, Request};
use tightfit_profile::survey::Sizes;
use tightfit_report::svg;
use tightfit_units::{Bytes, Error};

use super::print_optimized;
use crate::failure::{Failure, check_writable, first, write_file};
use crate::options::{Common, OptimizeOptions, Picture};
use crate::session::Session;
use crate::solve::{optimize, request};

pub fn run(options: &OptimizeOptions, common: &Common) -> Result<(), Failure> {
    let mut request = request(&options.request, common)?;
    if let Some(path) = &options.plot {
        check_writable(path)?;
    }
    let kernels = request.selection.kernels()?.len();
    let mut session = Session::open(common)?;
    request.divide = options.request.divide.get();
    if options.picture == Some(Picture::Front) && kernels > 1 {
        return Err(Failure::Usage(format!(
            "a front shows a single kernel, but {kernels} are selected; choose one with --layers and --operations"
        )));
    }
    let optimized = optimize(&request, Bytes::ZERO, &mut session, common)?;
    let printed = print_optimized(&optimized, common.format);
    let drawn = options.plot.as_ref().map_or(Ok(()), |path| {
        let picture = options.picture.unwrap_or(match (&optimized.kernels[..], request.limit) {
            ([_], _) => Picture::Front,
            (_, Limit::Total(_)) => Picture::Allotment,
            _ => Picture::Layers,
        });
        write_file(path, draw(picture, &optimized, &request, &mut session, common)?)
    });
    first([printed, drawn])
}

fn draw(
    picture: Picture,
    optimized: &Optimized,
    request: &Request,
    session: &mut Session,
    common: &Common,
) -> Result<String, Failure> {
    let batch = optimized.batch.map(|batch| format!(", mini-batch {batch}")).unwrap_or_default();
    let title = format!("{}{batch}, {}, {}", optimized.network, optimized.types, optimized.device.name);
    match picture {
        Picture::Front => match &optimized.kernels[..] {
            [kernel] => Ok(svg::front(
                &format!(
                    "{} {}{batch}, {}, {}",
                    kernel.layer,
                    kernel.problem.operation(),
                    optimized.types,
                    optimized.device.name
                ),
                kernel.front.as_deref().unwrap_or_default(),
            )),
            kernels => Err(Failure::Usage(format!(
                "a front shows a single kernel, but {} are selected; choose one with --layers and --operations",
                kernels.len()
            ))),
        },
        Picture::Allotment => Ok(svg::allotment(&title, optimized)),
        Picture::Layers => Ok(svg::per_layer(&title, &[(&optimized.limit.bytes().to_string(), optimized)])),
        Picture::Limits => {
            let curves = curves(request, session, common)?;
            Ok(svg::limits(&title, "workspace limit", &curves))
        }
    }
}

/// The network's time under limits that double from 1 MiB up to the given one, for all four rules of sizes.
fn curves(request: &Request, session: &mut Session, common: &Common) -> Result<Vec<svg::Curve>, Failure> {
    let largest = request.limit.bytes().min(Bytes::gib(64));
    let limits = std::iter::successors(Some(largest), |bytes| Some(Bytes(bytes.0 / 2)));
    let mut limits: Vec<Bytes> = limits.take_while(|bytes| *bytes >= Bytes::mib(1)).collect();
    limits.reverse();
    let mut curves = Vec::new();
    for sizes in Sizes::ALL {
        let mut points = Vec::new();
        for &bytes in &limits {
            let limit = match request.limit {
                Limit::PerKernel(_) => Limit::PerKernel(bytes),
                Limit::Total(_) => Limit::Total(bytes),
                Limit::One(_) => Limit::One(bytes),
            };
            let request = Request { sizes, limit, baseline: true, ..request.clone() };
            match optimize(&request, Bytes::ZERO, session, common) {
                Ok(optimized) => points.push((bytes, optimized.time())),
                Err(Failure::Error(Error::OverLimit { .. } | Error::OverTotal { .. } | Error::NotProfiled { .. })) => {}
                Err(failure) => return Err(failure),
            }
        }
        curves.push(svg::Curve { name: sizes.name().to_owned(), points });
    }
    Ok(curves)
}
