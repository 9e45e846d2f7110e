//! One file a command.

pub(crate) mod bench;
pub(crate) mod doctor;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod verify;
