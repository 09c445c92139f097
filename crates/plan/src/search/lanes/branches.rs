//! The branches of a step: groups between a fork and a join of the forward pass, with no path from one branch to another.
//!
//! ```text
//!         ,-- 1x1 ------.
//! fork ---+-- 1x1 -- 3x3 +-- join      three branches; everything that comes after the fork passes through the join
//!         `-- pool ------'
//! ```
//!
//! A branch's backward operations belong to the same groups as its forward operations.

use std::collections::HashMap;

use crate::step::{Access, GroupId, Step, TensorId};

/// A branch: the number of its fork, and its number within the fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    pub(crate) fork: usize,
    pub(crate) number: usize,
}

/// The branch of each group. For forks inside branches, only the outer fork counts.
pub(crate) struct Branches(Vec<Option<Branch>>);

impl Branches {
    pub(crate) fn of(step: &Step) -> Branches {
        let followers = followers(step);
        let joins = joins(&followers);
        let mut branches = vec![None; step.groups.len()];
        let (mut at, mut fork) = (0, 0);
        while at < followers.len() {
            let join = joins[at];
            let parts = if join < followers.len() { parts(&followers, at + 1, join) } else { Vec::new() };
            if parts.iter().all(|part| *part == 0) {
                at += 1;
                continue;
            }
            for (operation, number) in (at + 1..join).zip(parts) {
                branches[step.operations[operation].group.0] = Some(Branch { fork, number });
            }
            (at, fork) = (join, fork + 1);
        }
        Branches(branches)
    }

    pub(crate) fn get(&self, group: GroupId) -> Option<Branch> {
        self.0.get(group.0).copied().flatten()
    }
}

/// For each forward operation: the operations that must come after it because of a tensor.
fn followers(step: &Step) -> Vec<Vec<usize>> {
    #[derive(Default)]
    struct Accesses {
        written: Option<usize>,
        /// Since then.
        read: Vec<usize>,
    }
    let mut tensors: HashMap<TensorId, Accesses> = HashMap::new();
    let mut followers = vec![Vec::new(); step.forward()];
    for (place, operation) in step.operations[..step.forward()].iter().enumerate() {
        for used in &operation.uses {
            let accesses = tensors.entry(used.tensor).or_default();
            let mut before: Vec<usize> = accesses.written.into_iter().collect();
            if used.access == Access::Read {
                accesses.read.push(place);
            } else {
                before.append(&mut accesses.read);
                accesses.written = Some(place);
            }
            before.into_iter().filter(|before| *before != place).for_each(|before| followers[before].push(place));
        }
    }
    followers
}

/// For each operation: the first operation that every path from it passes through, or the number of operations.
fn joins(followers: &[Vec<usize>]) -> Vec<usize> {
    let end = followers.len();
    let mut joins = vec![end; end + 1];
    for place in (0..end).rev() {
        let meet = |mut one: usize, mut other: usize| {
            while one != other {
                let earlier = if one < other { &mut one } else { &mut other };
                *earlier = joins[*earlier];
            }
            one
        };
        joins[place] = followers[place].iter().copied().reduce(meet).unwrap_or(end);
    }
    joins.truncate(end);
    joins
}

/// The part of each operation from `first` to before `join`. Any path between two parts passes through one of these ends.
fn parts(followers: &[Vec<usize>], first: usize, join: usize) -> Vec<usize> {
    let mut parts: Vec<usize> = (0..join - first).collect();
    for place in first..join {
        for after in followers[place].iter().filter(|after| **after < join) {
            let (one, other) = (parts[place - first], parts[after - first]);
            parts.iter_mut().filter(|part| **part == one.max(other)).for_each(|part| *part = one.min(other));
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use tightfit_conv::Types;
    use tightfit_network::{Builder, Filters, Network, Shape, Window};

    use super::*;
    use crate::{Mode, Workload};

    /// The names of the layers of each branch, by fork.
    fn named(network: &Network) -> Vec<Vec<String>> {
        let step = Workload::new(network, 2, Types::F32, Mode::Training).unwrap().lower().unwrap().step;
        let branches = Branches::of(&step);
        let mut forks: Vec<Vec<(usize, String)>> = Vec::new();
        for (place, group) in step.groups.iter().enumerate() {
            let Some(Branch { fork, number }) = branches.get(GroupId(place)) else { continue };
            forks.resize(forks.len().max(fork + 1), Vec::new());
            match forks[fork].iter_mut().find(|(own, _)| *own == number) {
                Some((_, names)) => *names += &format!(" {}", group.name),
                None => forks[fork].push((number, group.name.clone())),
            }
        }
        forks.into_iter().map(|fork| fork.into_iter().map(|(_, names)| names).collect()).collect()
    }

    fn finished(mut net: Builder) -> Network {
        net.flatten().fully_connected("fc", 3).softmax_loss();
        net.finish().unwrap()
    }

    #[test]
    fn branches_lie_between_a_fork_and_its_join() {
        let mut net = Builder::new("branches");
        let fork = net.input(Shape::image(2, 8, 8)).conv("stem", Filters::new(4, 1)).relu().here();
        let a = net.conv("a", Filters::new(4, 1)).relu().here();
        let inner = net.at(fork).conv("b", Filters::new(4, 1)).here();
        let left = net.conv("b.left", Filters::new(2, 1)).here();
        let right = net.at(inner).conv("b.right", Filters::new(2, 1)).here();
        let b = net.concat("b.join", &[left, right]).here();
        let c = net.at(fork).max_pool("c.pool", Window::new(3, 1).pad(1)).conv("c", Filters::new(4, 1)).here();
        net.concat("join", &[a, b, c]).conv("after", Filters::new(4, 1));
        let expected = [["a a.relu", "b b.left b.right b.join", "c.pool c"]];
        assert_eq!(named(&finished(net)), expected, "the fork inside of b is part of it");
    }

    #[test]
    fn a_shortcut_is_a_branch_only_where_it_computes() {
        let mut net = Builder::new("residual");
        let fork = net.input(Shape::image(2, 8, 8)).conv("stem", Filters::new(4, 1)).relu().here();
        let left = net.conv("a", Filters::new(4, 1)).relu().conv("b", Filters::new(4, 1)).here();
        let sum = net.add("sum", &[left, fork]).relu().here();
        let left = net.conv("c", Filters::new(4, 1)).here();
        let right = net.at(sum).conv("shortcut", Filters::new(4, 1)).here();
        net.add("second", &[left, right]);
        assert_eq!(named(&finished(net)), [["c", "shortcut"]]);
    }

    #[test]
    fn built_in_networks_have_the_branches_of_their_modules() {
        let count = |name: &str| named(&Network::open(name).unwrap()).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(count("googlenet"), [4; 9]);
        assert_eq!(count("resnet50"), [2; 4], "projections");
        assert!(count("vgg16").is_empty() && count("densenet121").is_empty());
    }
}
