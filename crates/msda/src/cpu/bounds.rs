//! Debug builds know the memory that each pointer may be used for, and assert it at each use.

/// The memory that some pointers lie in. Empty in release builds, where nothing is asserted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    #[cfg(debug_assertions)]
    addresses: [usize; 2],
}

impl Bounds {
    #[inline(always)]
    pub(super) fn of<E>(data: &[E]) -> Self {
        let _ = data;
        Self {
            #[cfg(debug_assertions)]
            addresses: [data.as_ptr_range().start.addr(), data.as_ptr_range().end.addr()],
        }
    }

    /// Asserts that `n` elements from `p` on are in this memory, and that `p` is aligned.
    #[inline(always)]
    pub(super) fn debug_assert<E>(self, p: *const E, n: usize) {
        let _ = (p, n);
        #[cfg(debug_assertions)]
        self.check(p.addr(), n, size_of::<E>());
    }

    /// Not inlined: kernels are compiled many times.
    #[cfg(debug_assertions)]
    #[inline(never)]
    fn check(self, start: usize, n: usize, size: usize) {
        let [first, end] = self.addresses;
        let inside = first <= start && n * size <= end.saturating_sub(start);
        assert!(inside, "{n} elements at {start:#x} are not within {first:#x}..{end:#x}");
        assert!(start.is_multiple_of(size), "{start:#x} is not aligned");
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn uses_outside_of_the_memory_are_found() {
        let data = [0.0f32; 8];
        let (bounds, first) = (Bounds::of(&data[2..6]), data.as_ptr());
        bounds.debug_assert(first.wrapping_add(2), 4);
        bounds.debug_assert(first.wrapping_add(6), 0);
        let half = first.wrapping_byte_add(14);
        for (p, n) in
            [(first.wrapping_add(1), 2), (first.wrapping_add(2), 5), (first.wrapping_add(7), 1), (half, 1)]
        {
            std::panic::catch_unwind(|| bounds.debug_assert(p, n)).unwrap_err();
        }
    }
}
