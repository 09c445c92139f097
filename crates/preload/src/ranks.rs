//! The place of this process among the processes that a launcher started on this machine for one job.

use std::hash::{DefaultHasher, Hash, Hasher};

use tightfit_conv::Problem;

/// The variables of launchers: this process's number, and how many there are (torchrun, Open MPI, MVAPICH2, Slurm).
const VARIABLES: [(&str, &str); 4] = [
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
];

/// The variables for the number of processes of a job on all machines.
const SIZES: [&str; 4] = ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS"];

/// This process's number and the number of processes; 0 of 1 by default.
fn place() -> (u64, u64) {
    place_in(&variable)
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.trim().parse().ok()
}

fn place_in(number: &dyn Fn(&str) -> Option<u64>) -> (u64, u64) {
    let pairs = VARIABLES.iter().filter_map(|(rank, size)| Some((number(rank)?, number(size)?)));
    pairs.filter(|(rank, size)| rank < size).find(|(_, size)| *size > 1).unwrap_or((0, 1))
}

/// This process's number.
pub fn local_rank() -> u64 {
    place().0
}

/// Whether others run on this machine.
pub fn are_several() -> bool {
    place().1 > 1
}

/// Whether others run, here or on other machines.
pub fn are_in_job() -> bool {
    are_in(&variable)
}

fn are_in(number: &dyn Fn(&str) -> Option<u64>) -> bool {
    place_in(number).1 > 1 || SIZES.iter().any(|name| number(name) > Some(1))
}

/// Whether this process measures a convolution. Each is measured by one process, and all processes agree on it.
pub fn is_own(problem: &Problem) -> bool {
    let (rank, size) = place();
    number(problem) % size == rank
}

/// A number of the convolution that is the same in every process.
fn number(problem: &Problem) -> u64 {
    let mut hasher = DefaultHasher::new();
    problem.to_string().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_comes_from_the_launcher() {
        let among = |pairs: &'static [(&str, u64)]| {
            move |name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
        };
        let with = |pairs| place_in(&among(pairs));
        let are = |pairs| are_in(&among(pairs));
        assert_eq!(with(&[]), (0, 1));
        assert!(!are(&[]) && !are(&[("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)]));
        assert!(
            are(&[("WORLD_SIZE", 2), ("LOCAL_WORLD_SIZE", 1)]) && are(&[("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 2)])
        );
        assert_eq!(with(&[("LOCAL_RANK", 1), ("LOCAL_WORLD_SIZE", 2)]), (1, 2));
        assert_eq!(
            with(&[("LOCAL_RANK", 0), ("OMPI_COMM_WORLD_LOCAL_RANK", 3), ("OMPI_COMM_WORLD_LOCAL_SIZE", 4)]),
            (3, 4)
        );
        assert_eq!(with(&[("LOCAL_RANK", 5), ("LOCAL_WORLD_SIZE", 2)]), (0, 1), "makes no sense");
    }

    #[test]
    fn every_convolution_is_for_one_process() {
        let problem =
            |channels: usize| -> Problem { format!("forward n4 c{channels} h8 w8 k4 r3 s3 f32").parse().unwrap() };
        let counts = (1..=64).fold([0; 2], |mut counts, channels| {
            counts[(number(&problem(channels)) % 2) as usize] += 1;
            counts
        });
        assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
    }
}
