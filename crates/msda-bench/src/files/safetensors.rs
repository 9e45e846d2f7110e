//! The safetensors format: length of the header, JSON with the place of each tensor, then the
//! elements.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use ::safetensors::View;
use ::safetensors::tensor::{Metadata, TensorInfo};
use msda::{Error, ErrorKind, Result};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::stored::{self, Stored};
use super::tensor::{Tensor, byte_len};
use super::{quoted, shown};

/// The key of notes, which is no tensor.
const NOTES: &str = "__metadata__";

/// The tensors in the bytes of a `.safetensors` file.
pub fn parse(bytes: &[u8]) -> Result<BTreeMap<String, Tensor>> {
    let (header, data) = split(bytes)?;
    let Header(infos) = serde_json::from_slice(header).map_err(|e| malformed(&e.to_string()))?;
    let mut infos: Vec<_> = infos.into_iter().collect();
    infos.sort_by_key(|(_, info)| info.data_offsets);
    infos.iter().try_for_each(|(name, info)| check(name, info))?;

    // Not `SafeTensors::deserialize`: it adds the header's length to the last offset without a
    // check.
    let metadata = Metadata::new(None, infos.clone()).map_err(|e| malformed(&e.to_string()))?;
    if metadata.data_len() != data.len() {
        let got = format!("{} bytes after the header", data.len());
        let expected = format!("{} for the tensors it lists", metadata.data_len());
        return Err(Error::new(ErrorKind::Shape, "safetensors data", got, expected)
            .hint("the file is truncated or has extra bytes at its end: save it again"));
    }

    let decoded = infos.into_iter().map(|(name, info)| {
        let (begin, end) = info.data_offsets;
        let data = stored::decode(info.dtype, &subject(&name), &data[begin..end])?;
        Ok((name, Tensor { shape: info.shape, data }))
    });
    decoded.collect()
}

/// The bytes of a `.safetensors` file.
pub fn encode(tensors: &[(String, Tensor)]) -> Result<Vec<u8>> {
    let mut views = BTreeMap::new();
    for (name, tensor) in tensors {
        tensor.check(&subject(name))?;
        if name == NOTES {
            return Err(Error::new(ErrorKind::Format, "tensor name", quoted(name), "any other name")
                .hint("the format reserves this name for notes"));
        }
        if views.insert(name, Writable(tensor)).is_some() {
            let got = format!("{} twice", quoted(name));
            return Err(Error::new(ErrorKind::Format, "tensor names", got, "each name once"));
        }
    }
    ::safetensors::serialize(views, None)
        .map_err(|e| Error::new(ErrorKind::Format, "safetensors file", e, "tensors the format can hold"))
}

/// The header's JSON and the elements' bytes.
fn split(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let Some((len, rest)) = bytes.split_first_chunk() else {
        let got = format!("{} bytes in all", bytes.len());
        return Err(Error::new(ErrorKind::Shape, "safetensors file", got, "at least 8")
            .hint("the file is truncated or not a .safetensors"));
    };
    let len = u64::from_le_bytes(*len);
    usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len)).ok_or_else(|| {
        let got = format!("a length of {len} with {} bytes left in the file", rest.len());
        Error::new(ErrorKind::Shape, "safetensors header", got, "a header inside the file")
            .hint("the file is truncated or not a .safetensors")
    })
}

fn subject(name: &str) -> String {
    format!("tensor {}", quoted(name))
}

fn malformed(got: &str) -> Error {
    // These messages may quote long parts of the file.
    let got = shown(got);
    Error::new(ErrorKind::Format, "safetensors header", got, "JSON that covers the file's data exactly")
        .hint("the file is damaged, or not written by safetensors")
}

/// Checks the type of a tensor, and that its bytes match its shape.
fn check(name: &str, info: &TensorInfo) -> Result<()> {
    let subject = subject(name);
    let expected = byte_len(&subject, &info.shape, stored::size(info.dtype, &subject)?)?;
    let (begin, end) = info.data_offsets;
    if end.checked_sub(begin) == Some(expected) {
        return Ok(());
    }
    let expected = format!("{expected} bytes for the shape {:?} of {}", info.shape, info.dtype);
    Err(Error::new(ErrorKind::Shape, subject, format!("bytes {begin} to {end}"), expected)
        .hint("the file is damaged, or not written by safetensors"))
}

/// A tensor that is converted to bytes when it is written, so that one copy at a time is in memory.
struct Writable<'a>(&'a Tensor);

impl View for Writable<'_> {
    fn dtype(&self) -> Stored {
        stored::stored(&self.0.data)
    }

    fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        stored::encode(&self.0.data).into()
    }

    fn data_len(&self) -> usize {
        self.0.data.len() * self.dtype().bitsize() / 8
    }
}

/// The tensors of the header. Equal names are refused; the reader of the crate keeps the last.
struct Header(BTreeMap<String, TensorInfo>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = BTreeMap<String, TensorInfo>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
                let mut infos = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == NOTES {
                        map.next_value::<Option<BTreeMap<String, String>>>()?;
                        continue;
                    }
                    match infos.entry(name) {
                        Entry::Vacant(place) => drop(place.insert(map.next_value()?)),
                        Entry::Occupied(place) => {
                            return Err(A::Error::custom(format!("the name {} twice", quoted(place.key()))));
                        }
                    }
                }
                Ok(infos)
            }
        }

        deserializer.deserialize_map(Entries).map(Self)
    }
}
