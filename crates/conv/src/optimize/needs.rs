//! The workspace that each scheme needs to be at least as fast as a given allotment.
//!
//! ```text
//! WD             one segment per kernel, as large as allotted                         their sum
//! WR             one limit for all, one segment per kernel                            their sum
//! one workspace  one limit for all, one segment per overlapping kernel                the largest group's sum
//! ```

use tightfit_units::{Bytes, Nanos};

use crate::Configuration;

/// The total workspace with which a network is at least as fast under each scheme. It is exact for WD. For the other two it is sufficient, and as
/// small as the given fronts allow: the measurements for a total may lack some that a limit per kernel would need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The time of the allotment.
    pub time: Nanos,
    /// WD: the segments of the allotment.
    pub allotted: Bytes,
    /// A limit per kernel that reaches this time, the least within the fronts, for the other two.
    pub limit: Bytes,
    /// WR: one segment per kernel under that limit.
    pub per_kernel: Bytes,
    /// One workspace under that limit, with separate segments for kernels that may overlap.
    pub one: Bytes,
}

/// Computes the workspace of an allotment (WD), and the workspaces with which WR and one workspace are at least as fast.
///
/// `kernels` has the allotted configuration and the front of each kernel; `groups` lists the kernels that can run
/// concurrently (`Network::concurrent` of `tightfit-network`). Returns `None` if a kernel has no front, or no limit within the
/// fronts reaches the time.
///
/// - Cost: O(points of all fronts × log of their number).
pub fn needs(kernels: &[(&Configuration, &[Configuration])], groups: &[Vec<usize>]) -> Option<Needs> {
    let time = kernels.iter().map(|(chosen, _)| chosen.time()).sum();
    let mut limits: Vec<Bytes> =
        kernels.iter().flat_map(|(_, front)| front.iter()).map(Configuration::workspace).collect();
    limits.sort_unstable();
    limits.dedup();
    let under = |limit: Bytes| -> Option<Vec<&Configuration>> {
        kernels.iter().map(|(_, front)| front.iter().rfind(|point| point.workspace() <= limit)).collect()
    };
    let reaches = |limit: Bytes| {
        under(limit).is_some_and(|points| points.into_iter().map(Configuration::time).sum::<Nanos>() <= time)
    };
    // A larger limit is never slower, because times fall along a front.
    let limit = *limits.get(limits.partition_point(|&limit| !reaches(limit)))?;
    let workspaces: Vec<Bytes> = under(limit)?.into_iter().map(Configuration::workspace).collect();
    let of_group = |group: &Vec<usize>| group.iter().filter_map(|&kernel| workspaces.get(kernel).copied()).sum();
    Some(Needs {
        time,
        allotted: kernels.iter().map(|(chosen, _)| chosen.workspace()).sum(),
        limit,
        per_kernel: workspaces.iter().copied().sum(),
        one: groups.iter().map(of_group).max().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Candidate, DivisionCost};

    fn front(points: &[(u64, u64)]) -> Vec<Configuration> {
        let point = |&(bytes, nanos): &(u64, u64)| Candidate::new(Algorithm::new("a"), 1, Nanos(nanos), Bytes(bytes));
        points.iter().map(|p| Configuration::new(vec![point(p)], DivisionCost::default())).collect()
    }

    #[test]
    fn a_common_limit_needs_more_than_an_allotment() {
        let fronts = [front(&[(0, 90), (50, 10)]), front(&[(0, 20), (50, 15)]), front(&[(0, 90), (40, 10)])];
        // The first and the last gain; the second gets nothing.
        let kernels = [(&fronts[0][1], &fronts[0][..]), (&fronts[1][0], &fronts[1]), (&fronts[2][1], &fronts[2])];
        let alone: Vec<Vec<usize>> = (0..3).map(|kernel| vec![kernel]).collect();
        let found = needs(&kernels, &alone).unwrap();
        assert_eq!((found.time, found.allotted, found.limit), (Nanos(40), Bytes(90), Bytes(50)));
        assert_eq!((found.per_kernel, found.one), (Bytes(140), Bytes(50)));
        // Two overlapping kernels cannot share.
        assert_eq!(needs(&kernels, &[vec![0, 2], vec![1]]).unwrap().one, Bytes(90));
    }

    #[test]
    fn a_kernel_without_a_front_has_no_answer() {
        let fronts = front(&[(0, 90)]);
        assert_eq!(needs(&[(&fronts[0], &[])], &[vec![0]]), None);
    }
}
