//! Reports of a plan, for humans and programs: a table, a JSON document, a page with pictures, a trace.
//!
//! ```text
//!        +-> table   a terminal: each layer and its maps, the attempts, the totals
//! Plan --+-> json    a program: the same, and every step with its times
//!        +-> trace   a trace viewer: streams and live bytes over time
//!        `-> page    a browser: memory over time, streams, layers, maps (one HTML file that needs nothing else)
//! Plans under several budgets -> sweep   rows, a picture, a page
//! ```

mod grid;
mod json;
#[cfg(feature = "tables")]
mod page;
#[cfg(feature = "tables")]
mod pictures;
mod sweep;
#[cfg(feature = "tables")]
mod table;
mod trace;
#[cfg(feature = "tables")]
mod words;

pub use grid::{csv, grid};
pub use json::json;
#[cfg(feature = "tables")]
pub use page::page;
#[cfg(feature = "tables")]
pub use pictures::memory;
pub use sweep::Sweep;
#[cfg(feature = "tables")]
pub use table::table;
pub use trace::{TraceProcess, trace};

#[cfg(test)]
mod samples;
