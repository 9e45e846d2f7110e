//! One file per command.

pub(crate) mod analyze;
pub(crate) mod bench;
pub(crate) mod claims;
pub(crate) mod founding;
pub(crate) mod list;
pub(crate) mod probe;
pub(crate) mod report;
pub(crate) mod verify;
