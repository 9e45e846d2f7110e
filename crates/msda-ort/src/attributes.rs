//! The attributes of a node, which are the options of the operator.

use std::ffi::CStr;
use std::ptr;

use msda_call::call::{ALIGN_CORNERS, BORDER, NEAREST, pack_points};
use msda_call::error::{Refused, Result};

use crate::api::{Api, Handle};

/// The value of an attribute, or `None` if the node has none of that name.
fn given<T>(name: &CStr, expected: &str, got: Result<T>) -> Result<Option<T>> {
    match got {
        Ok(value) => Ok(Some(value)),
        // ONNX Runtime's words in all versions. With other words an attribute of ours is wrong, and
        // is not ignored. Attributes of other names are not seen: ONNX Runtime does not list them.
        Err(refused) if refused.message.contains("No attribute") => Ok(None),
        Err(refused) => Err(Refused::wrong_type(&name.to_string_lossy(), refused.message, expected)),
    }
}

/// The options as the number that a call takes.
///
/// # Safety
/// `info` describes a node.
pub(crate) unsafe fn options(api: Api, info: Handle) -> Result<i64> {
    let mut bits = 0;
    for (name, choices, bit) in
        [(c"sampling", ["bilinear", "nearest"], NEAREST), (c"padding", ["zeros", "border"], BORDER)]
    {
        let expected = format!("{:?} or {:?}", choices[0], choices[1]);
        // SAFETY: the function follows the rules of `Api::text`; the node lives.
        let text = unsafe {
            Api::text(|text, len| api.kernel_info_get_attribute_string(info, name.as_ptr(), text, len))
        };
        let Some(text) = given(name, &expected, text)? else { continue };
        let Some(choice) = choices.iter().position(|choice| *choice == text) else {
            return Err(Refused::value(&name.to_string_lossy(), format!("{text:?}"), expected));
        };
        bits |= bit * choice as i64;
    }
    let (name, expected) = (c"align_corners", "0 or 1");
    let mut number = 0;
    // SAFETY: the node lives; the result is valid to write.
    let got = unsafe { api.kernel_info_get_attribute_int64(info, name.as_ptr(), &mut number) };
    match given(name, expected, got)?.map(|()| number) {
        None | Some(0) => Ok(bits),
        Some(1) => Ok(bits | ALIGN_CORNERS),
        Some(other) => Err(Refused::value("align_corners", other, expected)),
    }
}

/// Points per level; none if the node has no such attribute, or an empty one.
///
/// # Safety
/// `info` describes a node.
pub(crate) unsafe fn points(api: Api, info: Handle) -> Result<Vec<u8>> {
    let (name, mut len) = (c"points", 0);
    let expected = "one number per level (at most 8), from 0 to 255 and at least one above 0";
    // SAFETY: the node lives; without a list, only the length is written.
    let got =
        unsafe { api.kernel_info_get_attribute_array_int64(info, name.as_ptr(), ptr::null_mut(), &mut len) };
    if given(name, expected, got)?.is_none() {
        return Ok(Vec::new());
    }
    if len == 0 {
        // An empty list is the schema's default. ONNX Runtime says 0 for a single number too.
        let mut single = 0;
        // SAFETY: the node lives; the result is valid to write.
        return match unsafe { api.kernel_info_get_attribute_int64(info, name.as_ptr(), &mut single) } {
            Ok(()) => Err(Refused::wrong_type("points", single, expected)),
            Err(_) => Ok(Vec::new()),
        };
    }
    let mut numbers = vec![0i64; len];
    // SAFETY: the list has room for so many numbers.
    unsafe {
        api.kernel_info_get_attribute_array_int64(info, name.as_ptr(), numbers.as_mut_ptr(), &mut len)?;
    }
    let points: Option<Vec<u8>> = numbers.iter().map(|&n| u8::try_from(n).ok()).collect();
    points
        .filter(|points| pack_points(points).is_some())
        .ok_or_else(|| Refused::value("points", format!("{numbers:?}"), expected))
}
