//! The structures of C, and how they become a call.
#![allow(non_camel_case_types)]

use std::ffi::c_void;
use std::slice;

use msda_call::call::{self, Call, LevelSizes, MOST_DIMENSIONS, SHAPES, Tensor, names, pack_points};
use msda_call::dtypes::Dtypes;
use msda_call::error::{Refused, Result};

/// 64-bit floats.
pub const MSDA_F64: i32 = 0;
/// 32-bit floats.
pub const MSDA_F32: i32 = 1;
/// 16-bit floats of IEEE 754.
pub const MSDA_F16: i32 = 2;
/// bfloat16.
pub const MSDA_BF16: i32 = 3;

const DTYPES: Dtypes<i32> = Dtypes { f64: MSDA_F64, f32: MSDA_F32, f16: MSDA_F16, bf16: MSDA_BF16 };

/// An option: the nearest pixel instead of a bilinear sample.
pub const MSDA_NEAREST: i64 = 1;
/// An option: locations are moved onto the level instead of reading zeros off it.
pub const MSDA_BORDER: i64 = 2;
/// An option: 0 and 1 are the centres of the corner pixels instead of the edges of the level.
pub const MSDA_ALIGN_CORNERS: i64 = 4;

const _: () = assert!(
    MSDA_NEAREST == call::NEAREST && MSDA_BORDER == call::BORDER && MSDA_ALIGN_CORNERS == call::ALIGN_CORNERS
);

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

fn null(name: &str, expected: &str) -> Refused {
    Refused::value(name, "NULL", expected)
}

/// A list of C, if it is not null.
///
/// # Safety
/// `list` is null or has `len` entries, which live for `'a`.
unsafe fn list<'a, T>(list: *const T, len: usize) -> Option<&'a [T]> {
    if len == 0 {
        return Some(&[]);
    }
    debug_assert!(list.is_aligned());
    // SAFETY: the list is not null, so it has `len` entries.
    (!list.is_null()).then(|| unsafe { slice::from_raw_parts(list, len) })
}

/// The tensor of a structure. It borrows the lists.
///
/// # Safety
/// `raw` is null or a tensor whose lists have `rank` entries and live for `'a`.
pub(crate) unsafe fn tensor<'a>(name: &'static str, raw: *const msda_tensor) -> Result<Tensor<'a>> {
    // SAFETY: null, or a tensor that lives for `'a`.
    let raw = unsafe { raw.as_ref() }.ok_or_else(|| null(name, "a tensor"))?;
    let dtype = DTYPES.find(raw.dtype).ok_or_else(|| {
        let expected = "MSDA_F64, MSDA_F32, MSDA_F16 or MSDA_BF16";
        Refused::wrong_type(name, format!("dtype {}", raw.dtype), expected)
    })?;
    let rank = usize::try_from(raw.rank).ok().filter(|&rank| rank <= MOST_DIMENSIONS);
    let rank = rank.ok_or_else(|| {
        let expected = format!("0 to {MOST_DIMENSIONS} dimensions");
        Refused::value(name, format!("rank {}", raw.rank), expected)
    })?;
    // SAFETY: the lists of a tensor are null or have `rank` entries.
    let (sizes, strides) = unsafe { (list(raw.sizes, rank), list(raw.strides, rank)) };
    let sizes = sizes.ok_or_else(|| null(name, "a list of sizes"))?;
    if raw.data.is_null() && !sizes.contains(&0) {
        return Err(null(name, "the address of its elements"));
    }
    Ok(Tensor { name, data: raw.data, dtype, sizes, strides })
}

/// The call of a structure. It borrows the lists of the tensors.
///
/// # Safety
/// `raw` is null or a call whose lists have as many entries as the header says and live for `'a`.
pub(crate) unsafe fn call<'a>(raw: *const msda_inputs) -> Result<Call<'a>> {
    // SAFETY: null, or a call that lives for `'a`.
    let raw = unsafe { raw.as_ref() }.ok_or_else(|| null("inputs", "a structure"))?;
    let levels = usize::try_from(raw.levels)
        .map_err(|_| Refused::value("levels", raw.levels, "a number of at least 0"))?;
    // SAFETY: the lists are null or have these numbers of entries, as the fields of the structure
    // say.
    let (shapes, starts, points) = unsafe {
        let shapes = list(raw.spatial_shapes, 2 * levels);
        let shapes = shapes.ok_or_else(|| null(SHAPES, "heights and widths"))?;
        (shapes, list(raw.level_start_index, levels), list(raw.points, levels))
    };
    let levels = LevelSizes::read(levels, |i| shapes[i], starts.map(|starts| |i| starts[i]))?;
    let fused = !raw.reference_points.is_null();
    let [value, reference @ .., locations, weights] = names(fused) else { unreachable!("3 or 4 names") };
    // SAFETY: the tensors are fields of the structure; the reference points are not null in the
    // form that has a name for them.
    let (value, locations, weights, reference) = unsafe {
        (
            tensor(value, &raw.value)?,
            tensor(locations, &raw.sampling_locations)?,
            tensor(weights, &raw.attention_weights)?,
            reference.first().map(|name| tensor(name, raw.reference_points)).transpose()?,
        )
    };
    let points = match points {
        None | Some([]) => 0,
        Some(points) => pack_points(points).ok_or_else(|| {
            let expected = "one number for each of at most 8 levels, and at least one above 0";
            Refused::value("points", format!("{points:?}"), expected)
        })?,
    };
    Ok(Call { value, levels, reference, locations, weights, options: raw.options, points })
}

/// The destinations of the gradients of value, locations, weights and reference points.
///
/// # Safety
/// `raw` is null or valid, and so are its tensors, for `'a`.
pub(crate) unsafe fn gradients<'a>(raw: *const msda_gradients) -> Result<[Option<Tensor<'a>>; 4]> {
    // SAFETY: null, or destinations that live for `'a`.
    let raw = unsafe { raw.as_ref() }.ok_or_else(|| null("gradients", "destinations"))?;
    let gradient = |name, raw: *const msda_tensor| match raw.is_null() {
        true => Ok(None),
        // SAFETY: not null, so it is a tensor that lives for `'a`.
        false => unsafe { tensor(name, raw) }.map(Some),
    };
    Ok([
        gradient("gradient of value", raw.value)?,
        gradient("gradient of locations", raw.sampling_locations)?,
        gradient("gradient of weights", raw.attention_weights)?,
        gradient("gradient of reference points", raw.reference_points)?,
    ])
}
