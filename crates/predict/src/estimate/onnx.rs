//! Models in ONNX files: their weights, and their intermediate results where the file names the shapes.
//!
//! Only the few needed fields are read, so no protocol buffer compiler is needed. Weights in
//! separate files count by their dimensions.
//!
//! # Source
//!
//! Field numbers: `onnx.proto` of ONNX 1.17. The encoding: the specification of protocol buffers.

use super::ModelShape;

/// Why bytes are not a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OnnxError {
    /// The encoding is broken, or cut off.
    #[error("not an ONNX file, or cut off at byte {at}")]
    Malformed {
        /// How many bytes could be read.
        at: usize,
    },
    /// It has no weights.
    #[error("no weights in it: expected a model with initializers")]
    Empty,
}

const GRAPH: u64 = 7;
const INITIALIZER: u64 = 5;
const VALUE_INFO: u64 = 13;
const DIMS: u64 = 1;
const VALUE_TYPE: u64 = 2;
const TENSOR_TYPE: u64 = 1;
const SHAPE: u64 = 2;
const DIM: u64 = 1;
const DIM_VALUE: u64 = 1;

/// A field of a message.
enum FieldValue<'b> {
    Number(u64),
    Bytes(&'b [u8]),
    /// Fixed-width numbers, which no field that is read has.
    Fixed,
}

/// Reads a message field by field.
struct MessageReader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> MessageReader<'b> {
    const fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn number(&mut self) -> Result<u64, OnnxError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or(OnnxError::Malformed { at: self.at })?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(OnnxError::Malformed { at: self.at })
    }

    fn skip(&mut self, length: usize) -> Result<&'b [u8], OnnxError> {
        let bad = OnnxError::Malformed { at: self.at };
        let end = self.at.checked_add(length).ok_or(bad)?;
        let bytes = self.bytes.get(self.at..end).ok_or(bad)?;
        self.at = end;
        Ok(bytes)
    }

    fn next(&mut self) -> Result<Option<(u64, FieldValue<'b>)>, OnnxError> {
        if self.at >= self.bytes.len() {
            return Ok(None);
        }
        let key = self.number()?;
        let value = match key & 7 {
            0 => FieldValue::Number(self.number()?),
            1 => self.skip(8).map(|_| FieldValue::Fixed)?,
            2 => {
                let length = tessera_model::number::index(self.number()?);
                FieldValue::Bytes(self.skip(length)?)
            }
            5 => self.skip(4).map(|_| FieldValue::Fixed)?,
            _ => return Err(OnnxError::Malformed { at: self.at }),
        };
        Ok(Some((key >> 3, value)))
    }
}

/// Calls `take` for each field of that number that has bytes.
fn each<'b>(
    bytes: &'b [u8],
    number: u64,
    take: &mut dyn FnMut(&'b [u8]) -> Result<(), OnnxError>,
) -> Result<(), OnnxError> {
    let mut reader = MessageReader::new(bytes);
    while let Some((field, value)) = reader.next()? {
        if let FieldValue::Bytes(inner) = value
            && field == number
        {
            take(inner)?;
        }
    }
    Ok(())
}

/// Reads a model's weights and intermediate results.
///
/// # Errors
///
/// [`OnnxError`]: name another file.
pub fn read(bytes: &[u8]) -> Result<ModelShape, OnnxError> {
    let (mut parameters, mut intermediates) = (0_u64, 0_u64);
    each(bytes, GRAPH, &mut |graph| {
        each(graph, INITIALIZER, &mut |tensor| {
            parameters = parameters.saturating_add(weights(tensor)?);
            Ok(())
        })?;
        each(graph, VALUE_INFO, &mut |value| {
            intermediates = intermediates.saturating_add(values(value)?);
            Ok(())
        })
    })?;
    if parameters == 0 {
        return Err(OnnxError::Empty);
    }
    Ok(ModelShape { parameters, intermediates, ..ModelShape::default() })
}

/// Returns the number of a tensor's values.
fn weights(tensor: &[u8]) -> Result<u64, OnnxError> {
    let mut reader = MessageReader::new(tensor);
    let mut product = 1_u64;
    while let Some((field, value)) = reader.next()? {
        match value {
            FieldValue::Number(dim) if field == DIMS => product = product.saturating_mul(dim),
            FieldValue::Bytes(packed) if field == DIMS => {
                let mut dims = MessageReader::new(packed);
                while dims.at < packed.len() {
                    product = product.saturating_mul(dims.number()?);
                }
            }
            FieldValue::Number(_) | FieldValue::Bytes(_) | FieldValue::Fixed => {}
        }
    }
    Ok(product)
}

/// Returns the number of values of an intermediate result for one sample: dimensions with a name count once.
fn values(info: &[u8]) -> Result<u64, OnnxError> {
    let mut product = 1_u64;
    each(info, VALUE_TYPE, &mut |kind| {
        each(kind, TENSOR_TYPE, &mut |tensor| {
            each(tensor, SHAPE, &mut |shape| {
                each(shape, DIM, &mut |dim| {
                    let mut reader = MessageReader::new(dim);
                    while let Some((field, value)) = reader.next()? {
                        if let FieldValue::Number(length) = value
                            && field == DIM_VALUE
                        {
                            product = product.saturating_mul(length.max(1));
                        }
                    }
                    Ok(())
                })
            })
        })
    })?;
    Ok(product)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut all = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
        all.extend_from_slice(bytes);
        all
    }

    #[test]
    fn weights_and_intermediate_results_are_counted_by_their_dimensions() {
        // One tensor of 3 x 200 with packed dimensions, and one result of N x 5.
        let tensor = field(1, &[3, 0xc8, 0x01]);
        let dims = [field(1, &field(2, b"N")), field(1, &[1 << 3, 5])].concat();
        let value = [field(1, b"out"), field(2, &field(1, &field(2, &dims)))].concat();
        let graph = [field(5, &tensor), field(13, &value)].concat();
        let shape = read(&field(7, &graph)).unwrap();

        assert_eq!((shape.parameters, shape.intermediates), (600, 5));
    }

    #[test]
    fn a_file_without_weights_is_refused() {
        assert_eq!(read(&[]), Err(OnnxError::Empty));
        assert!(matches!(read(b"{\"hidden_size\": 4}"), Err(OnnxError::Malformed { .. })));
    }

    proptest! {
        #[test]
        fn no_bytes_harm_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&bytes);
        }
    }
}
