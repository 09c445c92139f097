//! Reports of a plan, for humans and programs: a table, a JSON document, a page with pictures.
//!
//! ```text
//!        +-> table   a terminal: each layer and its maps, what it takes, what was tried
//! Plan --+-> json    a program: the same, and every step with its times
//!        `-> page    a browser: memory over time, streams, layers, maps (one HTML file that needs nothing else)
//! ```

mod json;
mod page;
mod pictures;
mod table;
mod words;

pub use json::json;
pub use page::page;
pub use table::{grid, table};

#[cfg(test)]
mod samples;
