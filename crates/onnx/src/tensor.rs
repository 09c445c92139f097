//! Constants of the file: initializers and the tensors of `Constant` nodes.

use super::constants::types;
use super::proto::{EXTERNAL, TensorProto, data_type};
use super::value::{Constant, Data, Dims, MOST_ELEMENTS, Order, Origin, elements};

/// A tensor's extents, and its elements if they are few and in the file.
pub fn constant(tensor: &TensorProto) -> Result<Constant, String> {
    let (dims, count) = extents(tensor)?;
    let is_here = count <= MOST_ELEMENTS && tensor.data_location != EXTERNAL;
    let data = if is_here { numbers(tensor, None).ok() } else { None };
    Ok(Constant { dims, of: tensor.data_type, data: data.unwrap_or(Data::Unknown), origin: None })
}

/// An initializer: a constant that knows its name.
pub fn initializer(tensor: &TensorProto) -> Result<Constant, String> {
    let mut constant = constant(tensor)?;
    let learned = constant.learnable();
    constant.origin = Some(Origin { name: tensor.name.clone(), order: Order::Same, learned });
    Ok(constant)
}

/// The extents of a tensor, and the number of its elements.
pub fn extents(tensor: &TensorProto) -> Result<(Dims, usize), String> {
    let dims: Option<Dims> = tensor.dims.iter().map(|&dim| usize::try_from(dim).ok()).collect();
    let count = dims.as_deref().and_then(elements);
    dims.zip(count).ok_or_else(|| format!("extents of {:?}", tensor.dims))
}

/// The bytes of `count` elements of a tensor in uncompressed form.
pub fn size(tensor: &TensorProto, count: usize) -> Result<usize, String> {
    let bits = types::bits(tensor.data_type)?;
    count.checked_mul(bits).map(|bits| bits.div_ceil(8)).ok_or_else(|| "are too large".to_owned())
}

/// The elements of a tensor; `external` are its bytes from another file. An error continues after the tensor's name.
pub fn numbers(tensor: &TensorProto, external: Option<&[u8]>) -> Result<Data, String> {
    let (_, count) = extents(tensor).map_err(|what| format!("have {what}"))?;
    let raw = external.unwrap_or(&tensor.raw_data);
    let data = if raw.is_empty() && external.is_none() {
        spelled_out(tensor)?
    } else {
        let wanted = size(tensor, count)?;
        if raw.len() != wanted {
            return Err(format!(
                "have {}, not the {wanted} B of {:?}",
                tightfit_units::Bytes(raw.len() as u64),
                tensor.dims
            ));
        }
        decoded(tensor.data_type, raw, count)?
    };
    let found = match &data {
        Data::Integers(all) => all.len(),
        Data::Floats(all) => all.len(),
        Data::Unknown => 0,
    };
    if found != count {
        return Err(format!("have {found} numbers, not the {count} of {:?}", tensor.dims));
    }
    Ok(data)
}

/// The elements of a tensor in the field for its type. The small types share the one for 32-bit whole numbers, floating-point
/// ones by their bits.
fn spelled_out(tensor: &TensorProto) -> Result<Data, String> {
    let (_, count) = extents(tensor)?;
    Ok(match tensor.data_type {
        data_type::FLOAT => decoded(tensor.data_type, &tensor.float_data, tensor.float_data.len() / 4)?,
        data_type::DOUBLE => decoded(tensor.data_type, &tensor.double_data, tensor.double_data.len() / 8)?,
        data_type::INT64 => Data::Integers(tensor.int64_data.clone()),
        data_type::UINT32 | data_type::UINT64 => {
            let all = tensor.uint64_data.iter().map(|&number| i64::try_from(number).ok());
            Data::Integers(all.collect::<Option<_>>().ok_or("have a number over 2^63")?)
        }
        data_type::FLOAT16 | data_type::BFLOAT16 => {
            let bits = varints(&tensor.int32_data)?;
            let bytes: Vec<u8> = bits.iter().flat_map(|&bits| (bits as u16).to_le_bytes()).collect();
            decoded(tensor.data_type, &bytes, bits.len())?
        }
        data_type::INT4 | data_type::UINT4 => {
            let bytes: Vec<u8> = varints(&tensor.int32_data)?.iter().map(|&two| two as u8).collect();
            decoded(tensor.data_type, &bytes, count)?
        }
        _ => {
            types::bits(tensor.data_type)?;
            Data::Integers(varints(&tensor.int32_data)?.into_iter().map(|number| i64::from(number as i32)).collect())
        }
    })
}

/// Packed whole numbers of variable length.
fn varints(bytes: &[u8]) -> Result<Vec<i64>, String> {
    let mut all = Vec::new();
    let (mut number, mut shift) = (0u64, 0);
    for byte in bytes {
        if shift > 63 {
            return Err("have a whole number that is too long".to_owned());
        }
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            all.push(number as i64);
            (number, shift) = (0, 0);
        }
    }
    if shift == 0 { Ok(all) } else { Err("end within a whole number".to_owned()) }
}

/// Elements from bytes as the file stores them.
fn decoded(of: i32, bytes: &[u8], count: usize) -> Result<Data, String> {
    let two = || bytes.as_chunks::<2>().0.iter();
    let four = || bytes.as_chunks::<4>().0.iter();
    let eight = || bytes.as_chunks::<8>().0.iter();
    Ok(match of {
        data_type::FLOAT => Data::Floats(four().map(|four| f64::from(f32::from_le_bytes(*four))).collect()),
        data_type::DOUBLE => Data::Floats(eight().map(|eight| f64::from_le_bytes(*eight)).collect()),
        data_type::FLOAT16 => Data::Floats(two().map(|two| half::f16::from_le_bytes(*two).to_f64()).collect()),
        data_type::BFLOAT16 => Data::Floats(two().map(|two| half::bf16::from_le_bytes(*two).to_f64()).collect()),
        data_type::INT64 => Data::Integers(eight().map(|eight| i64::from_le_bytes(*eight)).collect()),
        data_type::INT32 => Data::Integers(four().map(|four| i64::from(i32::from_le_bytes(*four))).collect()),
        data_type::UINT32 => Data::Integers(four().map(|four| i64::from(u32::from_le_bytes(*four))).collect()),
        data_type::INT16 => Data::Integers(two().map(|two| i64::from(i16::from_le_bytes(*two))).collect()),
        data_type::UINT16 => Data::Integers(two().map(|two| i64::from(u16::from_le_bytes(*two))).collect()),
        data_type::INT8 => Data::Integers(bytes.iter().map(|&byte| i64::from(byte as i8)).collect()),
        data_type::UINT8 => Data::Integers(bytes.iter().map(|&byte| i64::from(byte)).collect()),
        data_type::BOOL => Data::Integers(bytes.iter().map(|&byte| i64::from(byte != 0)).collect()),
        data_type::UINT64 => {
            let all = eight().map(|eight| i64::try_from(u64::from_le_bytes(*eight)).ok());
            Data::Integers(all.collect::<Option<_>>().ok_or("have a number over 2^63")?)
        }
        data_type::UINT4 | data_type::INT4 => {
            let nibbles = bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]).take(count);
            let signed = |nibble: u8| i64::from((nibble << 4) as i8 >> 4);
            let all = nibbles.map(|nibble| if of == data_type::INT4 { signed(nibble) } else { i64::from(nibble) });
            Data::Integers(all.collect())
        }
        other => return Err(types::bits(other).map_or_else(|what| what, |_| "cannot be read".to_owned())),
    })
}
