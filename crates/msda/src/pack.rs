//! Copies value from one layout to another.

use crate::dtype::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::op::offset;
use crate::problem::Problem;
use crate::threads;
use crate::view::{Role, Strides, View, ViewMut, check_read, check_write};

/// Copies `value`, laid out as in `from`, to `packed`, laid out as in `to`. Rings and gaps become
/// 0.
///
/// The two problems must have the same images, heads, channels, levels and value type. Layout,
/// starts of levels and positions may differ. Each pixel is copied to one place, so the gradient of
/// packing is packing back: call `pack` with the problems exchanged.
///
/// ```
/// use msda::{Layout, Problem, Spec, pack};
///
/// let spec = Spec { batch: 1, heads: 2, channels: 1, ..Spec::default() };
/// let from = Problem::new(Spec { levels: vec![(1, 2)], points: vec![1], ..spec })?;
/// let to = from.with(|s| s.layout = Layout::Planar)?;
/// let value = [1.0f32, 10.0, 2.0, 20.0]; // (B, S, H, D)
/// let mut planar = [0.0f32; 4]; // (B, H, S, D)
/// pack(&from, &value, &to, &mut planar)?;
/// assert_eq!(planar, [1.0, 2.0, 10.0, 20.0]);
/// # Ok::<(), msda::Error>(())
/// ```
pub fn pack<'a, 'b>(
    from: &Problem,
    value: impl Into<View<'a>>,
    to: &Problem,
    packed: impl Into<ViewMut<'b>>,
) -> Result<()> {
    let (value, packed) = (value.into(), packed.into());
    let same = |p: &Problem| (p.batch(), p.heads(), p.channels(), p.spec().levels.clone(), p.types().value);
    if same(from) != same(to) {
        return Err(Error::new(
            ErrorKind::Shape,
            "packing",
            format!("{from} to {to}"),
            "the same images, heads, channels, levels and value type",
        ));
    }
    let read = check_read(from, Role::Value, "value", &value)?;
    let write = check_write(to, Role::Value, "packed value", &packed)?;
    let copy = Copy { from, to, read, write };
    match (value.data, packed.data) {
        (crate::Slice::F64(a), crate::SliceMut::F64(b)) => copy.run(a, b),
        (crate::Slice::F32(a), crate::SliceMut::F32(b)) => copy.run(a, b),
        (crate::Slice::F16(a), crate::SliceMut::F16(b)) => copy.run(a, b),
        (crate::Slice::Bf16(a), crate::SliceMut::Bf16(b)) => copy.run(a, b),
        _ => unreachable!("both were checked to have the value type of the problem"),
    }
    Ok(())
}

/// Positions per task: with 8 heads of 32 `f32` channels, 64 KB to read and 64 KB to write.
const BLOCK: usize = 64;

// The outer dimensions of value.
const IMAGE: usize = 0;
const POSITION: usize = 1;
const HEAD: usize = 2;

struct Copy<'a> {
    from: &'a Problem,
    to: &'a Problem,
    read: Strides,
    /// Strides of the destination. No two rows share an element.
    write: Strides,
}

/// A part of the destination: a block of positions at one index of each dimension with a larger
/// stride. Dimensions with a smaller stride lie inside.
struct Piece<'a, T> {
    index: [usize; 3],
    to: &'a mut [T],
}

impl Copy<'_> {
    fn run<T: Element>(&self, value: &[T], packed: &mut [T]) {
        if self.to.value_len() == 0 {
            return;
        }
        let sources = self.sources();
        threads::for_each_chunk(&mut self.tasks(packed), 1, |_, tasks| {
            tasks.iter_mut().for_each(|pieces| self.copy_block(value, &sources, pieces));
        });
    }

    /// The pieces of the destination, grouped into tasks: one per image and block of positions, or
    /// one per block if images lie inside the positions.
    fn tasks<'t, T: Element>(&self, packed: &'t mut [T]) -> Vec<Vec<Piece<'t, T>>> {
        let (extents, _) = Role::Value.shape(self.to);
        let mut larger: Vec<usize> =
            [IMAGE, HEAD].into_iter().filter(|&dim| self.write[dim] > self.write[POSITION]).collect();
        larger.sort_by_key(|&dim| std::cmp::Reverse(self.write[dim]));
        let mut pieces = vec![Piece { index: [0; 3], to: packed }];
        for dim in larger {
            // The indices of a dimension do not interleave: its stride covers all smaller ones.
            let split = |Piece { index, to }: Piece<'t, T>| {
                let parts = to.chunks_mut(self.write[dim]).take(extents[dim]).enumerate();
                parts.map(move |(i, to)| {
                    let mut index = index;
                    index[dim] = i;
                    Piece { index, to }
                })
            };
            pieces = pieces.into_iter().flat_map(split).collect();
        }
        let blocks = extents[POSITION].div_ceil(BLOCK);
        let mut tasks: Vec<Vec<Piece<'t, T>>> = (0..extents[IMAGE] * blocks).map(|_| Vec::new()).collect();
        for Piece { index, to } in pieces {
            // With one position its stride is 0.
            let block = if blocks == 1 { to.len() } else { BLOCK * self.write[POSITION] };
            for (k, to) in to.chunks_mut(block).take(blocks).enumerate() {
                let mut index = index;
                index[POSITION] = k * BLOCK;
                tasks[index[IMAGE] * blocks + k].push(Piece { index, to });
            }
        }
        tasks.retain(|pieces| !pieces.is_empty());
        tasks
    }

    /// Fills one block: position by position, and all heads of a position together.
    fn copy_block<T: Element>(&self, value: &[T], sources: &[Option<usize>], pieces: &mut [Piece<'_, T>]) {
        let ([images, positions, heads], d) = Role::Value.shape(self.to);
        let Some(first) = pieces.first().map(|piece| piece.index[POSITION]) else { return };
        let inside = |dim: usize, extent: usize| {
            let larger = self.write[dim] > self.write[POSITION];
            if larger { 1 } else { extent }
        };
        let (images, heads) = (inside(IMAGE, images), inside(HEAD, heads));
        // Heads that are contiguous on both sides are one row.
        let together = heads > 1 && self.read[HEAD] == d && self.write[HEAD] == d;
        let (heads, d) = if together { (1, heads * d) } else { (heads, d) };
        for position in first..positions.min(first + BLOCK) {
            for piece in &mut *pieces {
                for image in 0..images {
                    for head in 0..heads {
                        let to = offset(self.write, [image, position - first, head]);
                        let to = &mut piece.to[to..to + d];
                        match sources[position] {
                            Some(source) => {
                                let index = [piece.index[IMAGE] + image, source, piece.index[HEAD] + head];
                                let at = offset(self.read, index);
                                to.copy_from_slice(&value[at..at + d]);
                            }
                            None => to.fill(T::default()),
                        }
                    }
                }
            }
        }
    }

    /// The source position of the pixel at each destination position, if it belongs to a level.
    fn sources(&self) -> Vec<Option<usize>> {
        let mut sources = vec![None; self.to.positions()];
        for (from, to) in self.from.levels().iter().zip(self.to.levels()) {
            for y in 0..to.h {
                for x in 0..to.w {
                    sources[to.position(y, x)] = Some(from.position(y, x));
                }
            }
        }
        sources
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Layout, Spec};

    #[test]
    fn each_layout_to_each_other_and_back() {
        let spec = Spec {
            batch: 2,
            heads: 3,
            channels: 5,
            levels: vec![(4, 3), (2, 2)],
            points: vec![1, 1],
            ..Spec::default()
        };
        let problems: Vec<Problem> = Layout::ALL
            .into_iter()
            .map(|layout| Problem::new(Spec { layout, ..spec.clone() }).unwrap())
            .chain([
                Problem::new(Spec { starts: Some(vec![9, 2]), positions: Some(30), ..spec.clone() }).unwrap()
            ])
            .collect();
        for a in &problems {
            // Only pixels are not zero, so packing back restores everything.
            let mut value = vec![0.0f32; a.value_len()];
            let strides = Role::Value.dense(a);
            let mut next = 0.0;
            for b in 0..2 {
                for level in a.levels() {
                    for i in 0..level.h * level.w {
                        for h in 0..3 {
                            let at = offset(strides, [b, level.position(i / level.w, i % level.w), h]);
                            for x in &mut value[at..at + 5] {
                                next += 1.0;
                                *x = next;
                            }
                        }
                    }
                }
            }
            for b in &problems {
                let mut there = vec![f32::NAN; b.value_len()];
                pack(a, &value, b, &mut there).unwrap();
                assert_eq!(there.iter().filter(|x| **x != 0.0).count(), 2 * 3 * 5 * 16);
                let mut back = vec![f32::NAN; a.value_len()];
                pack(b, &there, a, &mut back).unwrap();
                assert_eq!(back, value, "{a} through {b}");
            }
        }
        let other = problems[0].with(|s| s.channels = 4).unwrap();
        let mut out = vec![0.0f32; other.value_len()];
        let error = pack(&problems[0], &vec![0.0f32; problems[0].value_len()], &other, &mut out);
        assert!(error.unwrap_err().to_string().contains("the same images"));
    }

    /// All orders of the outer dimensions, with gaps: the rows are right and the gaps untouched.
    #[test]
    fn strided_destinations_receive_their_rows_and_nothing_else() {
        for (batch, heads, levels) in [
            (2, 3, vec![(20, 11), (2, 2)]),
            (1, 8, vec![(20, 11)]),
            (3, 1, vec![(7, 19), (3, 3)]),
            (2, 2, vec![(1, 1)]),
            (1, 1, vec![(9, 9)]),
        ] {
            let points = vec![1; levels.len()];
            let spec = Spec { batch, heads, channels: 5, levels, points, ..Spec::default() };
            let from = Problem::new(spec).unwrap();
            let value: Vec<f32> = (0..from.value_len()).map(|i| i as f32).collect();
            for layout in Layout::ALL {
                let to = from.with(|s| s.layout = layout).unwrap();
                let mut dense = vec![f32::NAN; to.value_len()];
                pack(&from, &value, &to, &mut dense).unwrap();
                let (extents, inner) = Role::Value.shape(&to);
                for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
                    let (mut strides, mut next) = ([0; 3], inner + 2);
                    for dim in order {
                        strides[dim] = next;
                        next = next * extents[dim] + 1;
                    }
                    let mut strided = vec![f32::NAN; next];
                    pack(&from, &value, &to, ViewMut::from(&mut strided).strided(strides)).unwrap();
                    let written = strided.iter().filter(|x| !x.is_nan()).count();
                    assert_eq!(written, to.value_len(), "{to} with strides {strides:?}");
                    Role::Value.for_each_row(&to, |index| {
                        let (a, b) = (offset(strides, index), offset(Role::Value.dense(&to), index));
                        assert_eq!(strided[a..a + inner], dense[b..b + inner], "{to} {strides:?} {index:?}");
                    });
                }
            }
        }
    }
}
