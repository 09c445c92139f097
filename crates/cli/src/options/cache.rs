//! The options of `cache`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Args)]
pub struct CacheOptions {
    #[command(subcommand)]
    pub action: CacheAction,
}

/// The action on the cache.
#[derive(Subcommand)]
pub enum CacheAction {
    /// List the devices and how many measurements and decisions each one has
    List {
        /// List the layers of profiled networks and of programs instead
        #[arg(long)]
        layers: bool,
        /// List what was decided about convolutions of programs instead
        #[arg(long, conflicts_with = "layers")]
        decisions: bool,
    },
    /// Write all measurements and decisions to a profile file (compressed if the name ends in .gz)
    Export {
        /// The file to write
        file: PathBuf,
    },
    /// Import profile files; decisions in the cache stay, unless they are unfinished and a file has finished ones
    Import {
        /// Files written by `export`, or recorded profiles
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Merge other caches into this one
    Merge {
        /// Cache files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Delete all measurements, after a question
    Clear {
        /// Ask nothing
        #[arg(long, short)]
        yes: bool,
        /// Delete only measurements of devices whose name contains this text
        #[arg(long, value_name = "TEXT", value_parser = part_of_a_name)]
        device: Option<String>,
    },
}

/// Text that not every name contains.
fn part_of_a_name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("the text is empty, so that every device would be meant; write a part of a name that `tightfit cache list` \
                    shows, or leave --device out to delete all measurements"
            .to_owned());
    }
    Ok(text.to_owned())
}
