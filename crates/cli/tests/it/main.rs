//! The command as a person or a script meets it: words, exit codes, messages, written files, and recovery from bad luck.
//!
//! `folder` and `virtual_env` run the command; every other module is named after a command or a subject.

mod folder;
mod virtual_env;

mod broken_files;
mod cache;
mod doctor;
mod documents;
mod interrupted;
mod optimize;
mod output;
mod own_models;
mod own_models_optimized;
mod plan;
mod predict;
mod readme;
mod report;
mod run;
mod run_on_mocks;
mod saved;
mod schemas;
mod split;
mod train;
mod train_on_mocks;
mod words;
