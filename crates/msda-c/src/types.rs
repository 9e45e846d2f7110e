//! The structures of C, and how they become a call.
#![allow(non_camel_case_types)]

use std::ffi::c_void;
use std::slice;

use msda::Dtype;
use msda_call::call::{Call, LevelSizes, MOST_DIMENSIONS, SHAPES, STARTS, Tensor, dense_strides};
use msda_call::error::{Refused, Result};

/// 64-bit floats.
pub const MSDA_F64: i32 = 0;
/// 32-bit floats.
pub const MSDA_F32: i32 = 1;
/// 16-bit floats of IEEE 754.
pub const MSDA_F16: i32 = 2;
/// bfloat16.
pub const MSDA_BF16: i32 = 3;

/// An option: the nearest pixel instead of a bilinear sample.
pub const MSDA_NEAREST: i64 = 1;
/// An option: locations are moved onto the level instead of reading zeros off it.
pub const MSDA_BORDER: i64 = 2;
/// An option: 0 and 1 are the centres of the corner pixels instead of the edges of the level.
pub const MSDA_ALIGN_CORNERS: i64 = 4;

/// A tensor. The structure and its lists are read during a call alone.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct msda_tensor {
    /// The first element.
    pub data: *mut c_void,
    /// MSDA_F32 and so on.
    pub dtype: i32,
    /// The number of dimensions.
    pub rank: i32,
    /// The size of each dimension.
    pub sizes: *const i64,
    /// The stride of each dimension in elements; NULL for a dense tensor. Of inputs, the dimensions
    /// from the fourth on are dense; outputs and gradients are dense.
    pub strides: *const i64,
}

/// The inputs of the operator.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct msda_inputs {
    /// (batch, positions, heads, channels)
    pub value: msda_tensor,
    /// The number of levels.
    pub levels: i32,
    /// Height and width of each level, in memory of the host.
    pub spatial_shapes: *const i64,
    /// The first position of each level, in memory of the host; NULL if each level starts where the
    /// one before ends.
    pub level_start_index: *const i64,
    /// NULL for the plain form. (batch, queries, levels, 2 or 4) for the fused form: then the next
    /// two tensors are sampling offsets and attention logits.
    pub reference_points: *const msda_tensor,
    /// (batch, queries, heads, levels, points, 2)
    pub sampling_locations: msda_tensor,
    /// (batch, queries, heads, levels, points)
    pub attention_weights: msda_tensor,
    /// A sum of MSDA_NEAREST, MSDA_BORDER and MSDA_ALIGN_CORNERS, or 0.
    pub options: i64,
    /// NULL, or the number of points of each of at most 8 levels: then levels and points are one
    /// dimension.
    pub points: *const u8,
}

/// Destinations of the gradients. NULL: the gradient is not computed.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct msda_gradients {
    /// Of value.
    pub value: *const msda_tensor,
    /// Of locations or offsets.
    pub sampling_locations: *const msda_tensor,
    /// Of weights or logits.
    pub attention_weights: *const msda_tensor,
    /// Of reference points.
    pub reference_points: *const msda_tensor,
}

/// A tensor that was read and checked, with its strides.
pub(crate) struct BorrowedTensor {
    name: &'static str,
    data: *mut c_void,
    dtype: Dtype,
    rank: usize,
    sizes: [i64; MOST_DIMENSIONS],
    strides: [i64; MOST_DIMENSIONS],
}

/// A call that was read and checked. The tensors are value, locations and weights.
pub(crate) struct BorrowedCall {
    tensors: [BorrowedTensor; 3],
    reference: Option<BorrowedTensor>,
    levels: LevelSizes,
    options: i64,
    points: i64,
}

fn null(name: &str, expected: &str) -> Refused {
    Refused::value(name, "NULL", expected)
}

/// A list of C, if it is not null.
///
/// # Safety
/// `list` is null or has `len` entries.
unsafe fn list<'a, T>(list: *const T, len: usize) -> Option<&'a [T]> {
    if len == 0 {
        return Some(&[]);
    }
    // SAFETY: the caller's promise.
    (!list.is_null()).then(|| unsafe { slice::from_raw_parts(list, len) })
}

impl BorrowedTensor {
    /// # Safety
    /// `raw` is null or a tensor whose lists have `rank` entries.
    pub(crate) unsafe fn new(name: &'static str, raw: *const msda_tensor) -> Result<Self> {
        // SAFETY: the caller's promise.
        let raw = unsafe { raw.as_ref() }.ok_or_else(|| null(name, "a tensor"))?;
        let dtype = match raw.dtype {
            MSDA_F64 => Dtype::F64,
            MSDA_F32 => Dtype::F32,
            MSDA_F16 => Dtype::F16,
            MSDA_BF16 => Dtype::Bf16,
            other => {
                let expected = "MSDA_F64, MSDA_F32, MSDA_F16 or MSDA_BF16";
                return Err(Refused::wrong_type(name, format!("dtype {other}"), expected));
            }
        };
        let rank = usize::try_from(raw.rank).ok().filter(|&rank| rank <= MOST_DIMENSIONS);
        let rank = rank.ok_or_else(|| {
            let expected = format!("0 to {MOST_DIMENSIONS} dimensions");
            Refused::value(name, format!("rank {}", raw.rank), expected)
        })?;
        // SAFETY: the caller's promise.
        let given = unsafe { list(raw.sizes, rank) }.ok_or_else(|| null(name, "a list of sizes"))?;
        let mut sizes = [0; MOST_DIMENSIONS];
        sizes[..rank].copy_from_slice(given);
        if raw.data.is_null() && !given.contains(&0) {
            return Err(null(name, "the address of its elements"));
        }
        let mut strides = dense_strides(given);
        // SAFETY: the caller's promise.
        if let Some(given) = unsafe { list(raw.strides, rank) } {
            strides[..rank].copy_from_slice(given);
        }
        Ok(Self { name, data: raw.data, dtype, rank, sizes, strides })
    }

    pub(crate) fn get(&self) -> Tensor<'_> {
        let Self { name, data, dtype, rank, sizes, strides } = self;
        let (data, dtype) = (*data, *dtype);
        Tensor { name, data, dtype, sizes: &sizes[..*rank], strides: &strides[..*rank] }
    }
}

impl BorrowedCall {
    /// # Safety
    /// `raw` is null or a call whose lists have as many entries as the header says.
    pub(crate) unsafe fn new(raw: *const msda_inputs) -> Result<Self> {
        // SAFETY: the caller's promise.
        let raw = unsafe { raw.as_ref() }.ok_or_else(|| null("inputs", "a structure"))?;
        let levels = usize::try_from(raw.levels)
            .map_err(|_| Refused::value("levels", raw.levels, "a number of at least 0"))?;
        // SAFETY: the caller's promise.
        let (shapes, starts, points) = unsafe {
            let shapes = list(raw.spatial_shapes, 2 * levels);
            let shapes = shapes.ok_or_else(|| null(SHAPES, "heights and widths"))?;
            (shapes, list(raw.level_start_index, levels), list(raw.points, levels))
        };
        let number =
            |name, n: i64| usize::try_from(n).map_err(|_| Refused::value(name, n, "numbers of at least 0"));
        let pairs = shapes.as_chunks::<2>().0.iter();
        let pairs = pairs.map(|&[h, w]| Ok((number(SHAPES, h)?, number(SHAPES, w)?)));
        let pairs = pairs.collect::<Result<Vec<_>>>()?;
        let starts = starts.filter(|starts| !starts.is_empty());
        let starts = starts.map(|starts| starts.iter().map(|&n| number(STARTS, n)).collect());
        let fused = !raw.reference_points.is_null();
        let names = match fused {
            false => ["sampling_locations", "attention_weights"],
            true => ["sampling_offsets", "attention_logits"],
        };
        // SAFETY: the caller's promise.
        let (value, locations, weights, reference) = unsafe {
            (
                BorrowedTensor::new("value", &raw.value)?,
                BorrowedTensor::new(names[0], &raw.sampling_locations)?,
                BorrowedTensor::new(names[1], &raw.attention_weights)?,
                match fused {
                    true => Some(BorrowedTensor::new("reference_points", raw.reference_points)?),
                    false => None,
                },
            )
        };
        let mut bytes = [0; 8];
        if let Some(points) = points.filter(|points| !points.is_empty()) {
            if points.len() > bytes.len() || points.iter().all(|&n| n == 0) {
                let expected = "one number for each of at most 8 levels, and at least one above 0";
                return Err(Refused::value("points", format!("{points:?}"), expected));
            }
            bytes[..points.len()].copy_from_slice(points);
        }
        Ok(Self {
            tensors: [value, locations, weights],
            reference,
            levels: LevelSizes::new(pairs, starts.transpose()?),
            options: raw.options,
            points: i64::from_le_bytes(bytes),
        })
    }

    pub(crate) fn get(&self) -> Call<'_> {
        let Self { tensors: [value, locations, weights], reference, levels, options, points } = self;
        Call {
            value: value.get(),
            levels: levels.clone(),
            reference: reference.as_ref().map(BorrowedTensor::get),
            locations: locations.get(),
            weights: weights.get(),
            options: *options,
            points: *points,
        }
    }
}

/// The destinations of the gradients of value, locations, weights and reference points.
pub(crate) struct BorrowedGradients([Option<BorrowedTensor>; 4]);

impl BorrowedGradients {
    /// # Safety
    /// `raw` is null or valid, and so are its tensors.
    pub(crate) unsafe fn new(raw: *const msda_gradients) -> Result<Self> {
        // SAFETY: the caller's promise.
        let raw = unsafe { raw.as_ref() }.ok_or_else(|| null("gradients", "destinations"))?;
        let gradient = |name, raw: *const msda_tensor| match raw.is_null() {
            true => Ok(None),
            // SAFETY: the caller's promise.
            false => unsafe { BorrowedTensor::new(name, raw) }.map(Some),
        };
        Ok(Self([
            gradient("gradient of value", raw.value)?,
            gradient("gradient of locations", raw.sampling_locations)?,
            gradient("gradient of weights", raw.attention_weights)?,
            gradient("gradient of reference points", raw.reference_points)?,
        ]))
    }

    pub(crate) fn get(&self) -> [Option<Tensor<'_>>; 4] {
        self.0.each_ref().map(|gradient| gradient.as_ref().map(BorrowedTensor::get))
    }
}
