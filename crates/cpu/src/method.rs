//! The table of algorithms: a name, a workspace known without running, and a function that runs.

use tightfit_conv::{Notes, Problem, Types};

use crate::call::Call;
use crate::{blocked_gemm, direct, explicit_gemm, fft, implicit_gemm, winograd};

/// One algorithm.
#[derive(Debug)]
pub struct Method {
    /// Its name for users.
    pub name: &'static str,
    /// Notes on its arithmetic.
    pub notes: Notes,
    /// Floats of workspace for a problem and a number of threads, or why it does not compute it.
    workspace: fn(&Problem, usize) -> Result<usize, String>,
    /// Runs in a workspace of exactly that many floats.
    pub run: fn(&Call, &mut [f32], &mut [f32]),
}

/// All algorithms, in the order in which they are listed.
pub static METHODS: [Method; 8] = [
    Method { name: "direct", notes: Notes::NONE, workspace: direct::workspace, run: direct::run },
    Method { name: "blocked-gemm", notes: Notes::NONE, workspace: blocked_gemm::workspace, run: blocked_gemm::run },
    Method { name: "implicit-gemm", notes: Notes::NONE, workspace: implicit_gemm::workspace, run: implicit_gemm::run },
    Method { name: "explicit-gemm", notes: Notes::NONE, workspace: explicit_gemm::workspace, run: explicit_gemm::run },
    Method {
        name: "winograd-2x2",
        notes: Notes::WINOGRAD,
        workspace: winograd::workspace::<2, 4>,
        run: winograd::run::<2, 4>,
    },
    Method {
        name: "winograd-4x4",
        notes: Notes::WINOGRAD,
        workspace: winograd::workspace::<4, 6>,
        run: winograd::run::<4, 6>,
    },
    Method { name: "fft", notes: Notes::FFT, workspace: fft::workspace_whole, run: fft::run_whole },
    Method { name: "fft-tiling", notes: Notes::FFT, workspace: fft::workspace_tiles, run: fft::run_tiles },
];

impl Method {
    /// The algorithm with this name.
    pub fn named(name: &str) -> Option<&'static Method> {
        METHODS.iter().find(|method| method.name == name)
    }

    /// Floats of workspace, or why this algorithm does not compute the problem.
    pub fn workspace(&self, problem: &Problem, threads: usize) -> Result<usize, String> {
        if problem.types() != Types::F32 {
            return Err(format!("the CPU backend supports only f32, not {}", problem.types()));
        }
        (self.workspace)(problem, threads)
    }
}
