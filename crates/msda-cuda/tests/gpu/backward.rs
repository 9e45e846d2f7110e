//! Backward kernels: sizes of levels and numbers of queries, training shapes, crowded pixels, the
//! order of sums, any strides.

use msda::{Backend, Buffer, Dtype, Gradients, Problem, ReferenceKind, Role, Spec, View, ViewMut, rng::Rng};
use msda_cuda::Cuda;
use msda_cuda::driver::Device;

use crate::calls::{Given, MANY_BINS, bytes, spec};
use crate::common::device;

/// Level sizes on the host and on the device.
fn both(device: &Device) -> [Cuda; 2] {
    [Cuda::new(device), Cuda::named(device, "levels").unwrap()]
}

/// One image with narrow rows.
fn narrow(heads: usize, levels: &[(usize, usize)], points: &[usize], queries: usize, dtype: Dtype) -> Spec {
    let (levels, points) = (levels.to_vec(), points.to_vec());
    Spec { batch: 1, heads, channels: 8, levels, points, ..spec(queries, dtype) }
}

/// The host does not know the sizes, so it expects fewer cells than these levels have.
#[test]
fn levels_on_the_device_may_have_more_cells_than_expected() {
    let Some(device) = device() else { return };
    for dtype in [Dtype::F32, Dtype::F16, Dtype::F64] {
        // With 600 queries and 16-bit or 32-bit values, nothing is sorted.
        for queries in [600, 1100] {
            // Thin levels have so many cells that cells share bins.
            let levels = vec![(1, 400), (400, 1), (3, 5), (200, 2)];
            let thin = Spec { levels, points: vec![4, 2, 4, 3], ..spec(queries, dtype) };
            // The last cell of each row has one pixel, and so have the last tiles.
            let odd = Spec { heads: 4, ..narrow(4, &[(97, 129), (49, 65)], &[4, 4], queries, dtype) };
            for sizes in [thin, odd] {
                Given::new(sizes).check_on(&[Cuda::named(&device, "levels").unwrap()]);
            }
        }
        // Several batches per block too.
        if dtype != Dtype::F32 {
            let thin = narrow(1, &[(1, 400), (400, 1), (200, 2)], &[4; 3], 35_000, dtype);
            Given::new(thin).check_on(&[Cuda::named(&device, "levels").unwrap()]);
        }
    }
}

/// Large levels: a block sorts very many samples at once. In the last case it sorts them in several
/// batches, and bins need more than 16 bits.
#[test]
fn levels_may_be_large() {
    let Some(device) = device() else { return };
    for (level, dtype) in [((307, 160), Dtype::F16), ((307, 160), Dtype::F64), ((1100, 240), Dtype::F32)] {
        Given::new(narrow(2, &[level], &[4], 6000, dtype)).check_on(&both(&device));
    }
}

/// Very many samples on few pixels: a block sorts them at once or, in the last cases, in several
/// batches. In the last two their number in a chunk does not fit 16 bits.
#[test]
fn queries_may_be_very_many() {
    let Some(device) = device() else { return };
    for (queries, dtype) in [
        (40_000, Dtype::F16),
        (70_000, Dtype::F32),
        (35_000, Dtype::F64),
        (200_000, Dtype::F16),
        (550_000, Dtype::F16),
        (530_000, Dtype::F64),
    ] {
        Given::new(narrow(1, &[(13, 21), (4, 3)], &[4, 1], queries, dtype)).check_on(&both(&device));
    }
}

/// More inputs than L2 holds: the gradient of value is computed in bands of the image.
#[test]
fn inputs_may_be_larger_than_l2() {
    let Some(device) = device() else { return };
    let levels = [(61, 80), (30, 40), (1, 3), (15, 20)];
    for (queries, dtype) in [(70_000, Dtype::F16), (40_000, Dtype::F32)] {
        Given::new(narrow(3, &levels, &[8, 8, 1, 8], queries, dtype)).check_on(&both(&device));
    }
}

/// More levels than fit the argument.
#[test]
fn levels_may_be_many() {
    let Some(device) = device() else { return };
    for (count, dtype) in [(70, Dtype::F16), (70, Dtype::F32), (300, Dtype::F64)] {
        let levels = (0..count).map(|l| (1 + l % 3, 2 + l % 5)).collect();
        let sizes = Spec { heads: 2, channels: 8, levels, points: vec![1; count], ..spec(5000, dtype) };
        Given::new(sizes).check_on(&[Cuda::new(&device)]);
    }
    // The table of many levels is in device memory.
    let sizes = Spec { levels: vec![(2, 1); 70], points: vec![1; 70], ..spec(0, Dtype::F32) };
    let results = Given::new(sizes).run(&Cuda::new(&device));
    assert!(results[0].to_f64().iter().all(|&x| x == 0.0), "no samples, and a gradient that is not 0");
}

/// Decoders while they are trained: RF-DETR with 13 groups of 300 queries, whose samples are
/// sorted; DINO with 200 queries for denoising, for which the shared memory of `value_few.cu` just
/// has room.
#[test]
fn decoders_in_training_are_right() {
    let Some(device) = device() else { return };
    let rf_detr = |dtype| Spec {
        heads: 16,
        channels: 16,
        levels: vec![(40, 40)],
        points: vec![2],
        ..spec(13 * 300, dtype)
    };
    let dino = |dtype| Spec {
        heads: 8,
        levels: vec![(100, 134), (50, 67), (25, 34), (13, 17)],
        points: vec![4; 4],
        ..spec(900 + 200, dtype)
    };
    for dtype in [Dtype::F16, Dtype::F32] {
        Given::new(rf_detr(dtype)).check_on(&both(&device));
        Given::fused(dino(dtype), ReferenceKind::Box).check_on(&both(&device));
    }
}

/// Rows that are no whole chunks of the kernels on tensor cores, aligned to 2 bytes and more; few
/// and many queries.
#[test]
fn channels_may_be_any_number() {
    let Some(device) = device() else { return };
    for channels in [1, 3, 12, 20, 24, 33, 36, 40, 48, 100, 300] {
        for dtype in [Dtype::F16, Dtype::F32] {
            for queries in [50, 1200] {
                let sizes =
                    Spec { channels, batch: 2, ..narrow(3, &[(13, 21), (5, 9)], &[4, 3], queries, dtype) };
                Given::new(sizes).check_on(&both(&device));
            }
        }
    }
}

/// Samples are sorted by counting if bins have few of them, else by digits: spread out, half of
/// them on one pixel, and in groups of some that share a bin.
#[test]
fn bins_may_have_few_or_many_samples() {
    let Some(device) = device() else { return };
    for dtype in [Dtype::F32, Dtype::F16, Dtype::F64] {
        for group in [1, 2, 40] {
            let mut given = Given::new(narrow(2, &[MANY_BINS, (31, 57)], &[4, 3], 1500, dtype));
            let places = given.locations.to_f64();
            let crowded = |i: usize| match group {
                2 if (i / 2).is_multiple_of(2) => i % 2,
                _ => i / 2 / group * group * 2 + i % 2,
            };
            given.locations = Buffer::from_fn(dtype, places.len(), |i| places[crowded(i)]);
            for backend in both(&device) {
                let first = given.run(&backend);
                given.check(&backend.name(), given.backward(), &first);
                assert_eq!(bytes(&first), bytes(&given.run(&backend)), "{}: other bits", backend.name());
            }
        }
    }
}

/// Groups of eight samples lie on one pixel, so they share a bin of the counting sort. In f64 a sum
/// is added sample by sample. Terms differ so much in size that the sum of another order has other
/// bits.
#[test]
fn samples_of_a_bin_are_added_in_their_order() {
    const LEVEL: (usize, usize) = (64, 128); // powers of two: coordinates are exact
    const QUERIES: usize = 1600;
    let Some(device) = device() else { return };
    let mut given = Given::new(narrow(1, &[LEVEL], &[1], QUERIES, Dtype::F64));
    let pixel = |query: usize| query / 8 * 29;
    given.locations = Buffer::from_fn(Dtype::F64, given.locations.len(), |i| match i % 2 {
        0 => ((pixel(i / 2) % LEVEL.1) as f64 + 0.5) / LEVEL.1 as f64,
        _ => ((pixel(i / 2) / LEVEL.1) as f64 + 0.5) / LEVEL.0 as f64,
    });
    given.weights = Buffer::filled(Dtype::F64, given.weights.len(), 1.0);
    let mut rng = Rng::new(11);
    let mut term = |_| (rng.unit() - 0.5) * 2f64.powi(rng.below(60) as i32);
    given.grad_output = Buffer::from_fn(Dtype::F64, given.grad_output.len(), &mut term);
    let (got, gradient) = (given.run(&Cuda::new(&device))[0].to_f64(), given.grad_output.to_f64());
    let mut depend_on_order = 0;
    for (query, c) in (0..QUERIES).step_by(8).flat_map(|query| (0..8).map(move |c| (query, c))) {
        let terms: Vec<f64> = (query..query + 8).map(|q| gradient[q * 8 + c]).collect();
        let want: f64 = terms.iter().sum();
        assert_eq!(got[pixel(query) * 8 + c], want, "pixel {}, channel {c}", pixel(query));
        depend_on_order += usize::from(want != terms.iter().rev().sum());
    }
    assert!(depend_on_order > QUERIES / 4, "{depend_on_order} sums depend on the order");
}

/// Every sum of the gradient of value that is not zero has thousands of terms.
#[test]
fn all_samples_may_be_on_one_pixel() {
    let Some(device) = device() else { return };
    let generic = Cuda::named(&device, "generic").unwrap();
    let backends = [
        Cuda::new(&device),
        Cuda::named(&device, "atomic").unwrap(),
        Cuda::named(&device, "levels").unwrap(),
        generic,
    ];
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        // Exactly on a pixel of every level, between four pixels, and in a corner of the map.
        for (place, exact) in [(0.5 + 1.0 / 32.0, true), (0.5, true), (0.999, false)] {
            let (levels, points) = (vec![(16, 16), (16, 16)], vec![4, 4]);
            let mut given = Given::new(Spec { heads: 2, levels, points, ..spec(2000, dtype) });
            given.locations = Buffer::filled(dtype, given.locations.len(), place);
            given.exact = exact;
            for backend in &backends {
                let results = given.run(backend);
                given.check(&backend.name(), given.backward(), &results);
                let rows = results[0].to_f64();
                let touched = rows.chunks(32).filter(|row| row.iter().any(|x| *x != 0.0)).count();
                // Images, heads, levels, and at most four pixels.
                assert!((8..=32).contains(&touched), "{}: {touched} rows", backend.name());
            }
        }
    }
}

/// A destination of a gradient that begins one element after an aligned address and has gaps
/// between its rows.
struct Spread {
    buffer: Buffer,
    strides: [usize; 3],
    role: Role,
}

impl Spread {
    const BETWEEN: f64 = -77.0;

    fn new(p: &Problem, role: Role, dtype: Dtype, gap: usize) -> Self {
        let ([a, b, c], inner) = role.shape(p);
        let row = inner + gap;
        let buffer = Buffer::filled(dtype, 1 + a * b * c * row, Self::BETWEEN);
        Self { buffer, strides: [b * c * row, c * row, row], role }
    }

    fn view(&mut self) -> ViewMut<'_> {
        ViewMut { data: self.buffer.as_mut().tail(1), strides: Some(self.strides) }
    }

    /// The gradient without its gaps, which must be as before.
    fn dense(&self, p: &Problem) -> Buffer {
        let inner = self.role.shape(p).1;
        let all = self.buffer.as_slice();
        let mut own = vec![false; all.len()];
        let mut numbers = Vec::new();
        self.role.for_each_row(p, |index| {
            let row = 1 + (0..3).map(|i| index[i] * self.strides[i]).sum::<usize>();
            numbers.extend((row..row + inner).map(|i| all.get(i)));
            own[row..row + inner].fill(true);
        });
        let touched = (0..all.len()).filter(|&i| !own[i] && all.get(i) != Self::BETWEEN).count();
        assert_eq!(touched, 0, "{p}: elements between the rows of {:?} were written", self.role);
        Buffer::from_fn(all.dtype(), numbers.len(), |i| numbers[i])
    }
}

#[test]
fn gradients_may_be_strided_and_unaligned() {
    let Some(device) = device() else { return };
    let kind = ReferenceKind::Point;
    for (dtype, channels) in [(Dtype::F32, 32), (Dtype::F16, 32), (Dtype::Bf16, 24), (Dtype::F64, 8)] {
        let given = Given::fused(Spec { channels, ..spec(900, dtype) }, kind);
        let p = &given.problem;
        for backend in [
            Cuda::new(&device),
            Cuda::named(&device, "atomic").unwrap(),
            Cuda::named(&device, "levels").unwrap(),
        ] {
            for gap in [1, 8] {
                let roles = [Role::Value, Role::Locations, Role::Weights, Role::Reference(kind)];
                let mut spread = roles.map(|role| Spread::new(p, role, dtype, gap));
                let [value, locations, weights, reference] = spread.each_mut().map(|s| Some(s.view()));
                let gradients = Gradients { value, locations, weights, reference };
                backend.backward(p, &given.inputs(), View::from(&given.grad_output), gradients).unwrap();
                given.check(&backend.name(), given.backward(), &spread.map(|s| s.dense(p)));
            }
        }
    }
}
