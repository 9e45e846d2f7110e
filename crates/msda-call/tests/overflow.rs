//! Sizes and strides of a caller may be any numbers: a call is refused, and no arithmetic overflows.
#![allow(unsafe_code)]

use std::ptr;

use msda::Dtype;
use msda_call::call::{Call, LevelSizes, Tensor, names};
use msda_call::cpu;
use msda_call::cuda::Prepared;
use msda_call::error::{Refused, Result, catch};
use msda_call::threads::OnThreads;

const HUGE: i64 = i64::MAX;
const NUMBERS: [i64; 7] = [i64::MIN, -1, 0, 1 << 31, 1 << 32, 1 << 62, HUGE];

/// Sizes of value, reference points, locations, weights, and of the output or its gradient.
const SIZES: [&[i64]; 5] = [&[2, 4, 3, 4], &[2, 3, 1, 4], &[2, 3, 3, 1, 2, 2], &[2, 3, 3, 1, 2], &[2, 3, 12]];

/// Sizes and strides of each tensor, and the elements that all of them share.
struct Tensors {
    sizes: [Vec<i64>; 5],
    strides: [Option<Vec<i64>>; 5],
    data: Box<[f32; 144]>,
}

impl Tensors {
    fn new() -> Self {
        Self { sizes: SIZES.map(<[i64]>::to_vec), strides: Default::default(), data: Box::new([0.0; 144]) }
    }

    fn tensor(&self, i: usize, name: &'static str) -> Tensor<'_> {
        let data = ptr::from_ref(&*self.data).cast_mut().cast();
        Tensor { name, data, dtype: Dtype::F32, sizes: &self.sizes[i], strides: self.strides[i].as_deref() }
    }

    fn call(&self) -> (Call<'_>, Tensor<'_>) {
        let names = names(true);
        let call = Call {
            value: self.tensor(0, names[0]),
            levels: LevelSizes::new(vec![(2, 2)], None),
            reference: Some(self.tensor(1, names[1])),
            locations: self.tensor(2, names[2]),
            weights: self.tensor(3, names[3]),
            options: 0,
            points: 0,
        };
        (call, self.tensor(4, "output"))
    }

    /// Everything that is done with the numbers before elements are read. The first refusal.
    fn check(&self) -> Result<()> {
        let (call, output) = self.call();
        let gradients = [Some(call.value), Some(call.locations), Some(call.weights), call.reference];
        // Each step runs: a call on a GPU checks only what its plan does not.
        let steps = [
            catch(|| call.problem().map(drop)),
            catch(|| call.check_output(&output)),
            catch(|| call.check_gradients(&gradients)),
            catch(|| Prepared::forward(&call, &output, usize::MAX).map(drop)),
            catch(|| Prepared::backward(&call, &output, gradients, usize::MAX).map(drop)),
        ];
        steps.into_iter().find(|step| step.as_ref().is_err_and(is_panic)).unwrap_or_else(|| {
            call.problem()?;
            call.check_output(&output)
        })
    }
}

fn is_panic(refused: &Refused) -> bool {
    refused.message.contains("internal error")
}

#[test]
fn no_size_and_no_stride_overflows() {
    Tensors::new().check().expect("the sizes are right");
    for i in 0..SIZES.len() {
        for dim in 0..SIZES[i].len() {
            for number in NUMBERS {
                let mut tensors = Tensors::new();
                tensors.sizes[i][dim] = number;
                let refused = tensors.check().expect_err("no tensor has this size");
                assert!(!is_panic(&refused), "size {number} of {:?}: {}", SIZES[i], refused.message);
                // Two large sizes in tensors that share them.
                for tensor in &mut tensors.sizes {
                    (tensor[0], tensor[1]) = (number, number);
                }
                assert!(!tensors.check().is_err_and(|refused| is_panic(&refused)), "{:?}", tensors.sizes);
                let mut tensors = Tensors::new();
                let strides = tensors.strides[i].insert(vec![1; SIZES[i].len()]);
                strides[dim] = number;
                assert!(!tensors.check().is_err_and(|refused| is_panic(&refused)), "{:?}", tensors.strides);
            }
        }
    }
}

/// Points that only one tensor counts: their sum over the levels is larger than any number.
#[test]
fn no_sum_of_points_overflows() {
    let mut tensors = Tensors::new();
    for i in [2, 3] {
        (tensors.sizes[i][3], tensors.sizes[i][4]) = (3, HUGE);
    }
    let (call, _) = tensors.call();
    let call = Call { levels: LevelSizes::new(vec![(1, 1), (1, 1), (1, 2)], None), reference: None, ..call };
    let refused = catch(|| call.problem().map(drop)).unwrap_err();
    assert!(refused.message.contains("sum of points: got"), "{}", refused.message);
}

/// A stride whose product with a size is larger than any number, in each tensor that is read.
#[test]
fn strides_that_do_not_fit_memory_are_refused() {
    for (i, name) in ["value", "reference_points", "sampling_offsets", "attention_logits", "grad_output"]
        .into_iter()
        .enumerate()
    {
        let mut tensors = Tensors::new();
        let dense = |dim: usize| SIZES[i][dim + 1..].iter().product();
        let mut strides: Vec<i64> = (0..SIZES[i].len()).map(dense).collect();
        strides[1] = HUGE;
        tensors.strides[i] = Some(strides);
        let (call, _) = tensors.call();
        let (problem, grad) = (call.problem().unwrap(), tensors.tensor(4, "grad_output"));
        let value = Some(call.value);
        let on_cpu = catch(|| {
            // SAFETY: the call is refused before an element is read.
            unsafe {
                cpu::backward(&call, &problem, &grad, [value, None, None, None], OnThreads::Count(None))
            }
        });
        let on_gpu = catch(|| Prepared::backward(&call, &grad, [value, None, None, None], 0).map(drop));
        for refused in [on_cpu.unwrap_err(), on_gpu.unwrap_err()] {
            let message = &refused.message;
            assert!(message.starts_with(&format!("{name}: got shape")), "{message}");
            assert!(message.ends_with("expected a span that fits memory"), "{message}");
        }
    }
}
