//! The shape of the output, before sizes are known.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use msda_call::error::Result;

use crate::api::{Api, Handle, Release};

/// A size that is known, or that has a name.
#[derive(Debug, Clone)]
enum Size {
    Known(i64),
    Named(CString),
}

impl Size {
    /// A name that no other size has. A size without a name would be -1 for the nodes that follow.
    fn fresh() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("msda_size_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Self::Named(CString::new(name).unwrap_or_default())
    }
}

/// The type and the sizes of an input; `None` where nothing is known. An input of unknown rank has
/// no sizes.
///
/// # Safety
/// `context` is the context of a shape inference for an operator with such an input.
unsafe fn describe(api: Api, context: Handle, index: usize) -> Result<(c_int, Vec<Option<Size>>)> {
    let (mut info, mut rank, mut dtype) = (ptr::null_mut(), 0, 0);
    // SAFETY: the context lives and keeps the object; the results are valid to write.
    unsafe {
        api.shape_infer_context_get_input_type_shape(context, index, &mut info)?;
        api.get_tensor_element_type(info, &mut dtype)?;
        api.get_dimensions_count(info, &mut rank)?;
    }
    let (mut sizes, mut names) = (vec![-1i64; rank], vec![ptr::null::<c_char>(); rank]);
    // SAFETY: both lists have room for `rank` results.
    unsafe {
        api.get_dimensions(info, sizes.as_mut_ptr(), rank)?;
        api.get_symbolic_dimensions(info, names.as_mut_ptr(), rank)?;
    }
    let size = |(size, name): (i64, *const c_char)| match size {
        0.. => Some(Size::Known(size)),
        _ if name.is_null() => None,
        _ => {
            // SAFETY: a string that lives as long as the object.
            let name = unsafe { CStr::from_ptr(name) };
            (!name.is_empty()).then(|| Size::Named(name.to_owned()))
        }
    };
    Ok((dtype, sizes.into_iter().zip(names).map(size).collect()))
}

/// Tells ONNX Runtime the type and the shape `(B, Q, H * D)` of the output. ONNX Runtime asks one
/// of the operators of a name for all of them, so the type is that of the value.
///
/// # Safety
/// `context` is the context of a shape inference for an operator of ours.
pub(crate) unsafe fn infer(api: Api, context: Handle) -> Result<()> {
    // Locations and reference points both begin with batch and queries.
    // SAFETY: both forms have inputs of these indices, and the context lives through this function.
    let ((dtype, value), (_, queries)) = unsafe { (describe(api, context, 0)?, describe(api, context, 3)?) };
    let known = |sizes: &[Option<Size>], i: usize| sizes.get(i).cloned().flatten();
    let row = match (known(&value, 2), known(&value, 3)) {
        (Some(Size::Known(heads)), Some(Size::Known(channels))) => heads.checked_mul(channels),
        _ => None,
    };
    let shape = [known(&value, 0).or_else(|| known(&queries, 0)), known(&queries, 1), row.map(Size::Known)]
        .map(|size| size.unwrap_or_else(Size::fresh));
    let sizes = shape.each_ref().map(|size| if let Size::Known(n) = size { *n } else { -1 });
    let names = shape.each_ref().map(|size| match size {
        Size::Known(_) => c"".as_ptr(),
        Size::Named(name) => name.as_ptr(),
    });
    let mut info = ptr::null_mut();
    // SAFETY: the lists have three entries; the names live until the end of this function.
    unsafe {
        api.create_tensor_type_and_shape_info(&mut info)?;
        let told = api
            .set_tensor_element_type(info, dtype)
            .and_then(|()| api.set_dimensions(info, sizes.as_ptr(), sizes.len()))
            .and_then(|()| api.set_symbolic_dimensions(info, names.as_ptr(), names.len()))
            .and_then(|()| api.shape_infer_context_set_output_type_shape(context, 0, info));
        api.release(Release::TensorTypeAndShapeInfo, info);
        told
    }
}
