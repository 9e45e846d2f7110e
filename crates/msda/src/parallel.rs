//! Loops over independent tasks: on the current rayon pool, or plain loops without the feature.

/// Calls `work` with each task.
pub(crate) fn for_each<T: Send>(tasks: Vec<T>, work: impl Fn(T) + Sync + Send) {
    #[cfg(feature = "rayon")]
    {
        use rayon::prelude::*;
        tasks.into_par_iter().for_each(work);
    }
    #[cfg(not(feature = "rayon"))]
    tasks.into_iter().for_each(work);
}
