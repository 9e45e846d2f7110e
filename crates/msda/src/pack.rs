//! Copying value from one layout to another.

use crate::dtype::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::op::offset;
use crate::problem::Problem;
use crate::view::{Role, View, ViewMut, check_read, check_write};

/// Copies `value`, laid out as `from` says, to `packed`, laid out as `to` says. Rings and gaps become zero.
///
/// The two problems must have the same images, heads, channels, levels and value type; layout, level starts and
/// positions may differ. Every pixel is copied to one place, so the gradient of packing is packing back: call it with
/// the problems exchanged.
///
/// ```
/// use msda::{Inputs, Layout, Problem, Spec, pack};
///
/// let spec = Spec { batch: 1, heads: 2, channels: 1, levels: vec![(1, 2)], points: vec![1], ..Spec::default() };
/// let from = Problem::new(spec)?;
/// let to = from.with(|s| s.layout = Layout::Planar)?;
/// let value = [1.0f32, 10.0, 2.0, 20.0]; // (B, S, H, D)
/// let mut planar = [0.0f32; 4]; // (B, H, S, D)
/// pack(&from, value.as_slice().into(), &to, planar.as_mut_slice().into())?;
/// assert_eq!(planar, [1.0, 2.0, 10.0, 20.0]);
/// # Ok::<(), msda::Error>(())
/// ```
pub fn pack(from: &Problem, value: View<'_>, to: &Problem, packed: ViewMut<'_>) -> Result<()> {
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
        _ => unreachable!("both were checked to be of the problem's value type"),
    }
    Ok(())
}

struct Copy<'a> {
    from: &'a Problem,
    to: &'a Problem,
    read: [usize; 3],
    write: [usize; 3],
}

impl Copy<'_> {
    fn run<T: Element>(&self, value: &[T], packed: &mut [T]) {
        if self.to.value_len() == 0 {
            return;
        }
        let source = self.sources();
        let d = self.to.channels();
        let row = |image: usize, position: usize, head: usize, to: &mut [T]| match source[position] {
            Some(s) => {
                let at = offset(self.read, [image, s, head]);
                to.copy_from_slice(&value[at..at + d]);
            }
            None => to.fill(T::default()),
        };
        // Dense destinations are divided among the threads; others are rare and need no speed.
        if self.write == Role::Value.dense(self.to) && d > 0 {
            let (s, h) = (self.to.positions(), self.to.heads());
            let planar = self.write[1] == d;
            crate::threads::for_each_chunk(packed, 256 * d, |chunk, rows| {
                for (i, to) in (256 * chunk..).zip(rows.chunks_exact_mut(d)) {
                    let (image, position, head) = match planar {
                        true => (i / (h * s), i % s, i / s % h),
                        false => (i / (h * s), i / h % s, i % h),
                    };
                    row(image, position, head, to);
                }
            });
            return;
        }
        for image in 0..self.to.batch() {
            for position in 0..self.to.positions() {
                for head in 0..self.to.heads() {
                    let at = offset(self.write, [image, position, head]);
                    row(image, position, head, &mut packed[at..at + d]);
                }
            }
        }
    }

    /// For each destination position, the source position of its pixel, if it belongs to a level.
    fn sources(&self) -> Vec<Option<usize>> {
        let mut source = vec![None; self.to.positions()];
        for (from, to) in self.from.levels().iter().zip(self.to.levels()) {
            for y in 0..to.h {
                for x in 0..to.w {
                    source[to.position(y, x)] = Some(from.position(y, x));
                }
            }
        }
        source
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Layout, Spec};

    #[test]
    fn any_layout_to_any_other_and_back() {
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
            // Only pixels hold numbers, so that the way back restores everything.
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
                pack(a, (&value).into(), b, (&mut there).into()).unwrap();
                assert_eq!(there.iter().filter(|x| **x != 0.0).count(), 2 * 3 * 5 * 16);
                let mut back = vec![f32::NAN; a.value_len()];
                pack(b, (&there).into(), a, (&mut back).into()).unwrap();
                assert_eq!(back, value, "{a} by way of {b}");
                // Into strided memory: the same rows, and nothing else.
                let [x, y, z] = Role::Value.dense(b).map(|s| 2 * s);
                let mut spread = vec![f32::NAN; 2 * b.value_len()];
                pack(a, (&value).into(), b, ViewMut::from(&mut spread).strided([x, y, z])).unwrap();
                let written = spread.iter().filter(|x| !x.is_nan()).count();
                assert_eq!(written, b.value_len());
            }
        }
        let other = problems[0].with(|s| s.channels = 4).unwrap();
        let mut out = vec![0.0f32; other.value_len()];
        let error =
            pack(&problems[0], (&vec![0.0f32; problems[0].value_len()]).into(), &other, (&mut out).into());
        assert!(error.unwrap_err().to_string().contains("the same images"));
    }
}
