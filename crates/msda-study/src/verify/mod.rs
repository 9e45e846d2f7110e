//! Verification of the ladder.

mod ladder;
mod whole;

pub use ladder::*;
pub use whole::{Compared, Whole};
