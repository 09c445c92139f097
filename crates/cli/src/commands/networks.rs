//! `tightfit networks [NAME]`

use tightfit_network::{LayerKind, Network, names};
use tightfit_report::{Align, Grid};

use super::print_grid;
use crate::failure::{Failure, write_file};
use crate::model;
use crate::options::{Common, Format, NetworksOptions};

pub fn run(options: &NetworksOptions, common: &Common) -> Result<(), Failure> {
    let grid = match &options.network {
        None => all(common.format)?,
        Some(name) => {
            let network = model::open(name)?.network;
            if let Some(path) = &options.out {
                return write_file(path, network.to_json());
            }
            layers(&network)
        }
    };
    print_grid(&grid, common.format)
}

/// The built-in networks; programs get whole numbers of multiply-adds, people billions.
fn all(format: Format) -> Result<Grid, Failure> {
    let (left, right) = (Align::Left, Align::Right);
    let people = format == Format::Table;
    let (work, what) = if people { ("GMAC", "what it is") } else { ("multiply_adds", "description") };
    let columns = [("network", left), ("convolutions", right), ("parameters", right), (work, right), (what, left)];
    let mut grid = Grid::new(columns);
    for (name, what) in names() {
        let network = Network::open(name)?;
        let convolutions = network.convolutions().count();
        let work = network.multiply_adds();
        let multiply_adds = if people { format!("{:.3}", work / 1e9) } else { work.to_string() };
        let cells = [
            name.to_owned(),
            convolutions.to_string(),
            network.parameters().to_string(),
            multiply_adds,
            what.to_owned(),
        ];
        grid.push(cells);
    }
    Ok(grid)
}

fn layers(network: &Network) -> Grid {
    let (left, right) = (Align::Left, Align::Right);
    let mut grid =
        Grid::new([("layer", left), ("kind", left), ("output", left), ("parameters", right), ("convolution", left)]);
    for layer in network.layers() {
        let convolution = match &layer.kind {
            LayerKind::Convolution { convolution, .. } => convolution.to_string(),
            _ => String::new(),
        };
        grid.push([
            layer.name.clone(),
            layer.kind.name().to_owned(),
            layer.shape.to_string(),
            layer.parameters.to_string(),
            convolution,
        ]);
    }
    grid
}
