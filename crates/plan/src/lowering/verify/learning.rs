//! The computation of a step in the order of its passes: the content of every tensor, and the contents required at the end.

use tightfit_network::{LayerId, LayerKind};

use crate::lowering::verify::fault::{Fault, Operand, is_in_place, is_view, unflattened};
use crate::step::Access;
use crate::{LayerPass, Mode, Pass, Role, Workload};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing was written to it.
    Nothing,
    /// Its content from the end of the previous training step.
    Kept,
    /// Weights for the next training step.
    Updated,
    /// A map as this layer wrote it.
    Map(LayerId),
    /// The sum of the gradients from these layers, each for the given input.
    Gradient(Vec<(LayerId, usize)>),
    /// Data other than maps from one of this layer's passes.
    Of(LayerId),
}

/// The passes that have run, and the passes that a training step must run.
pub(crate) struct Learning {
    /// For each layer: whether the loss depends on it.
    reaches_loss: Vec<bool>,
    /// For each layer and pass: whether it has run.
    done: Vec<[bool; 4]>,
}

impl Learning {
    pub(crate) fn of(workload: &Workload<'_>) -> Learning {
        let layers = workload.network.layers();
        let mut reaches_loss = vec![false; layers.len()];
        for (id, layer) in workload.network.iter().rev() {
            reaches_loss[id.index()] |= layer.kind == LayerKind::SoftmaxLoss;
            if reaches_loss[id.index()] {
                layer.inputs.iter().for_each(|input| reaches_loss[input.index()] = true);
            }
        }
        Learning { reaches_loss, done: vec![[false; 4]; layers.len()] }
    }

    /// Runs a pass: checks the contents it reads and updates those it writes.
    pub(crate) fn compute(
        &mut self,
        workload: &Workload<'_>,
        of: &LayerPass,
        uses: &[Operand],
        contents: &mut [Content],
    ) -> Result<(), Fault> {
        for layer in [Some(of.layer), of.relu].into_iter().flatten() {
            if std::mem::replace(&mut self.done[layer.index()][of.pass as usize], true) {
                return Err(Fault::RunTwice);
            }
        }
        // The layer whose output is written, or whose gradient is read.
        let last = of.relu.unwrap_or(of.layer);
        for (place, used) in uses.iter().enumerate().filter(|(_, used)| used.access != Access::Write) {
            // For a sum of a map with itself, the second gradient is added to the first.
            let mut before = uses[..place].iter();
            let just_written = before.any(|other| other.place == used.place && other.access == Access::Write);
            let layer = if used.role == Role::Dy { last } else { of.layer };
            if !just_written && !self.is_right(workload, layer, used.role, &contents[used.place]) {
                return Err(Fault::WrongContent(used.role));
            }
        }
        for used in uses.iter().filter(|used| used.access != Access::Read) {
            let content = &mut contents[used.place];
            match used.role {
                Role::Y => *content = Content::Map(last),
                Role::W => *content = Content::Updated,
                Role::Dw | Role::Saved | Role::Labels => *content = Content::Of(of.layer),
                Role::Dx(place) => match content {
                    // An in-place layer changes the existing content; out of place, the access is `Add`.
                    Content::Gradient(from) if used.access == Access::Add || is_in_place(workload, of.layer, place) => {
                        from.push((of.layer, place));
                    }
                    _ => *content = Content::Gradient(vec![(of.layer, place)]),
                },
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a pass may read this content as its operand.
    fn is_right(&self, workload: &Workload<'_>, layer: LayerId, role: Role, content: &Content) -> bool {
        match (role, content) {
            (Role::X(place), Content::Map(writer)) => {
                let inputs = &workload.network.layer(layer).inputs;
                inputs.get(place).is_some_and(|input| unflattened(workload, *input) == *writer)
            }
            (Role::Y, Content::Map(writer)) => {
                // Dropout in place over a ReLU keeps the sign, and nothing but the sign is read.
                let kind = |layer| &workload.network.layer(layer).kind;
                let kept = *kind(layer) == LayerKind::Relu && matches!(kind(*writer), LayerKind::Dropout { .. });
                *writer == layer || kept
            }
            (Role::Dy, Content::Gradient(from)) => {
                let mut expected = self.gradients(workload, layer);
                let mut from = from.clone();
                expected.sort_unstable();
                from.sort_unstable();
                from == expected
            }
            // A later contribution reads the partial sum that it adds to.
            (Role::Dx(_), Content::Gradient(_)) => true,
            (Role::W, Content::Kept) => true,
            (Role::Momentum | Role::SecondMoment | Role::Statistics | Role::Master, _) => true,
            (Role::Saved | Role::Dw, Content::Of(writer)) => *writer == layer,
            (Role::Labels, Content::Of(writer)) => {
                matches!(workload.network.layer(*writer).kind, LayerKind::Input { .. })
            }
            _ => false,
        }
    }

    /// The gradients that must be complete before a layer reads its output's gradient: from all readers of the map, and from layers that work in
    /// place on it.
    fn gradients(&self, workload: &Workload<'_>, layer: LayerId) -> Vec<(LayerId, usize)> {
        let map = workload.maps.written_by(layer);
        let mut expected = Vec::new();
        for (id, of) in workload.network.iter().filter(|(id, _)| self.reaches_loss[id.index()]) {
            for (place, input) in of.inputs.iter().enumerate() {
                let reads = workload.maps.written_by(*input) == map;
                let outside = workload.maps.written_by(id) != map;
                let over = !outside && id > layer && !(is_view(&of.kind) || of.kind == LayerKind::Add);
                if reads && (outside || over) {
                    expected.push((id, place));
                }
            }
        }
        expected
    }

    /// Whether this is a result of the step: the probabilities, and in inference any map that no layer reads.
    pub(crate) fn is_result(&self, workload: &Workload<'_>, content: &Content) -> bool {
        let Content::Map(writer) = *content else { return false };
        let is_probabilities = workload.network.layer(writer).kind == LayerKind::SoftmaxLoss;
        let map = workload.maps.get(workload.maps.written_by(writer));
        let is_last = map.layers.last().is_some_and(|last| unflattened(workload, *last) == writer);
        is_last && (is_probabilities || workload.mode == Mode::Inference && map.readers.is_empty())
    }

    /// The first pass that has not run.
    pub(crate) fn missing(&self, workload: &Workload<'_>) -> Option<Fault> {
        workload.network.iter().find_map(|(id, layer)| {
            let done = |pass| self.done[id.index()][pass as usize];
            let learns = workload.trains(id) && self.reaches_loss[id.index()] && workload.mode == Mode::Training;
            if !is_view(&layer.kind) && !done(Pass::Forward) {
                Some(Fault::MissingPass(Pass::Forward))
            } else {
                (learns && !done(Pass::Update)).then_some(Fault::MissingPass(Pass::Update))
            }
        })
    }
}
