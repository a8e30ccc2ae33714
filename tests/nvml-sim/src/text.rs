//! Text into a caller's buffer.

use std::ffi::c_char;
use std::ptr::NonNull;

use crate::{Answer, code};

/// A caller's buffer, or null.
pub(crate) type Buffer = Option<NonNull<c_char>>;

/// Copies text and its end into a buffer of `length` bytes.
///
/// # Safety
/// The buffer has that many bytes.
pub(crate) unsafe fn put(buffer: Buffer, length: u32, text: Answer<String>) -> u32 {
    let (Some(buffer), Ok(text)) = (buffer, &text) else { return text.err().unwrap_or(code::INVALID_ARGUMENT) };
    if text.len() >= length as usize {
        return code::INSUFFICIENT_SIZE;
    }
    // SAFETY: the text and its end fit into the caller's buffer, which cannot overlap a string of ours.
    unsafe {
        buffer.cast().copy_from_nonoverlapping(NonNull::from(text.as_bytes()).cast::<u8>(), text.len());
        buffer.add(text.len()).write(0);
    }
    code::SUCCESS
}

/// Fills a fixed array with text and zeros.
pub(crate) fn fill(array: &mut [c_char], text: &str) {
    array.fill(0);
    let room = array.len().saturating_sub(1);
    for (to, from) in array.iter_mut().zip(text.bytes()).take(room) {
        *to = from.cast_signed();
    }
}
