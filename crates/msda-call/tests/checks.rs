//! Calls that are refused. Sizes and strides of a caller may be any numbers: no arithmetic
//! overflows, and the message begins with the name of the argument.
#![allow(unsafe_code)]

use std::ptr;

use msda::Dtype;
use msda_call::call::{Call, LevelSizes, Tensor, dense_stride};
use msda_call::cpu;
use msda_call::cuda::Prepared;
use msda_call::error::catch;
use msda_call::threads::OnThreads;

const NUMBERS: [i64; 7] = [i64::MIN, -1, 0, 1 << 31, 1 << 32, 1 << 62, i64::MAX];

const NAMES: [&str; 5] = ["value", "reference_points", "sampling_offsets", "attention_logits", "grad_output"];
const SIZES: [&[i64]; 5] = [&[2, 4, 3, 4], &[2, 3, 1, 4], &[2, 3, 3, 1, 2, 2], &[2, 3, 3, 1, 2], &[2, 3, 12]];

/// Sizes and strides of the tensors. They have no memory.
struct Tensors {
    sizes: [Vec<i64>; 5],
    strides: [Vec<i64>; 5],
}

impl Tensors {
    fn new() -> Self {
        let dense = |sizes: &[i64]| (0..sizes.len()).map(|dim| dense_stride(sizes, dim)).collect();
        Self { sizes: SIZES.map(<[i64]>::to_vec), strides: SIZES.map(dense) }
    }

    fn tensor(&self, i: usize) -> Tensor<'_> {
        let data = ptr::without_provenance_mut(1 << 12);
        let (sizes, strides) = (&self.sizes[i], Some(&*self.strides[i]));
        Tensor { name: NAMES[i], data, dtype: Dtype::F32, sizes, strides }
    }

    fn call(&self) -> Call<'_> {
        Call {
            value: self.tensor(0),
            levels: LevelSizes::new(vec![(2, 2)], None),
            reference: Some(self.tensor(1)),
            locations: self.tensor(2),
            weights: self.tensor(3),
            options: 0,
            points: 0,
        }
    }

    /// Does everything that is done before elements are read. Nothing may panic.
    fn check(&self) {
        let (call, output) = (self.call(), self.tensor(4));
        let gradients = [Some(call.value), Some(call.locations), Some(call.weights), call.reference];
        let results = [
            catch(|| call.problem().map(drop)),
            catch(|| call.check_output(&output)),
            catch(|| call.check_gradients(&gradients)),
            catch(|| Prepared::forward(&call, &output, usize::MAX).map(drop)),
            catch(|| Prepared::backward(&call, &output, gradients, usize::MAX).map(drop)),
        ];
        for refused in results.into_iter().filter_map(Result::err) {
            let Self { sizes, strides } = self;
            assert!(
                !refused.message.contains("internal error"),
                "{sizes:?} {strides:?}: {}",
                refused.message
            );
        }
    }
}

#[test]
fn no_size_and_no_stride_overflows() {
    Tensors::new().call().problem().expect("the sizes are right");
    for i in 0..SIZES.len() {
        for (dim, number) in (0..SIZES[i].len()).flat_map(|dim| NUMBERS.map(|number| (dim, number))) {
            let mut tensors = Tensors::new();
            tensors.strides[i][dim] = number;
            tensors.check();
            let mut tensors = Tensors::new();
            tensors.sizes[i][dim] = number;
            tensors.check();
            // Two large sizes, which several tensors share.
            tensors.sizes.iter_mut().for_each(|sizes| sizes[..2].fill(number));
            tensors.check();
        }
    }
}

/// The sum of the points over the levels is larger than any number.
#[test]
fn no_sum_of_points_overflows() {
    let mut tensors = Tensors::new();
    for i in [2, 3] {
        tensors.sizes[i][3..5].copy_from_slice(&[3, i64::MAX]);
    }
    let levels = LevelSizes::new(vec![(1, 1), (1, 1), (1, 2)], None);
    let call = Call { levels, reference: None, ..tensors.call() };
    let refused = catch(|| call.problem().map(drop)).unwrap_err();
    assert!(refused.message.starts_with("sum of points: got"), "{}", refused.message);
}

/// A stride whose product with a size is larger than any number, in each tensor that is read.
#[test]
fn strides_that_do_not_fit_memory_are_refused() {
    for (i, name) in NAMES.into_iter().enumerate() {
        let mut tensors = Tensors::new();
        tensors.strides[i][1] = i64::MAX;
        let (call, grad) = (tensors.call(), tensors.tensor(4));
        let (problem, grads) = (call.problem().unwrap(), [Some(call.value), None, None, None]);
        // SAFETY: the call is refused before an element is read.
        let on_cpu = || unsafe { cpu::backward(&call, &problem, &grad, grads, OnThreads::Count(None)) };
        let on_gpu = || Prepared::backward(&call, &grad, grads, usize::MAX).map(drop);
        for refused in [catch(on_cpu).unwrap_err(), catch(on_gpu).unwrap_err()] {
            let message = refused.message;
            assert!(message.starts_with(&format!("{name}: got shape")), "{message}");
            assert!(message.ends_with("expected a span that fits memory"), "{message}");
        }
    }
}

/// Mistakes that only the problem finds have the name of the argument in front too.
#[test]
fn errors_of_the_problem_name_the_argument() {
    type Change = fn(&mut Call<'_>);
    let cases: [(&str, Change); 6] = [
        ("value: positions: got 4,", |c| c.levels = LevelSizes::new(vec![(2, 2)], Some(vec![1]))),
        ("spatial_shapes: size of level 0: got 0x3,", |c| {
            c.levels = LevelSizes::Host(vec![(0, 3)], Some(vec![0]))
        }),
        ("level_start_index: level starts: got 2 entries,", |c| {
            c.levels = LevelSizes::Host(vec![(2, 2)], Some(vec![0, 1]));
        }),
        ("level_start_index: end of level 0: got", |c| {
            c.levels = LevelSizes::Host(vec![(2, 2)], Some(vec![usize::MAX]));
        }),
        ("sampling_offsets: type of locations: got bf16", |c| {
            (c.locations.dtype, c.reference) = (Dtype::Bf16, None);
        }),
        ("attention_logits: type of weights: got f64", |c| c.weights.dtype = Dtype::F64),
    ];
    let tensors = Tensors::new();
    for (message, change) in cases {
        let mut call = tensors.call();
        change(&mut call);
        let refused = call.problem().unwrap_err();
        assert!(refused.message.starts_with(message), "{message}: {}", refused.message);
    }
}
