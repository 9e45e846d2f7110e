//! Work on several threads: on the current rayon pool, or on the calling thread alone without the
//! feature `rayon`.

#[cfg(feature = "rayon")]
use rayon::prelude::*;

/// Calls `work` with every chunk of `slice` and its number.
pub(crate) fn for_each_chunk<T: Send>(
    slice: &mut [T],
    chunk: usize,
    work: impl Fn(usize, &mut [T]) + Sync + Send,
) {
    #[cfg(feature = "rayon")]
    slice.par_chunks_mut(chunk).enumerate().for_each(|(i, part)| work(i, part));
    #[cfg(not(feature = "rayon"))]
    slice.chunks_mut(chunk).enumerate().for_each(|(i, part)| work(i, part));
}
