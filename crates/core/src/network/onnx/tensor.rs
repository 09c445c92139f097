//! Constants of the file: initializers and the tensors of `Constant` nodes.

use super::operators::is_floating;
use super::proto::{EXTERNAL, TensorProto, data_type};
use super::value::{Constant, Data, Dims, MOST_ELEMENTS, Order, Origin, elements};

/// A tensor's extents, and its elements if they are few and in the file.
pub fn constant(tensor: &TensorProto) -> Result<Constant, String> {
    let dims: Option<Dims> = tensor.dims.iter().map(|&dim| usize::try_from(dim).ok()).collect();
    let count = dims.as_deref().and_then(elements);
    let (Some(dims), Some(count)) = (dims, count) else {
        return Err(format!("extents of {:?}", tensor.dims));
    };
    let data = if count > MOST_ELEMENTS || tensor.data_location == EXTERNAL { None } else { numbers(tensor) };
    let data = match data {
        Some(Data::Integers(all)) if all.len() == count => Data::Integers(all),
        Some(Data::Floats(all)) if all.len() == count => Data::Floats(all),
        _ => Data::Unknown,
    };
    Ok(Constant { dims, data, origin: None })
}

/// An initializer: a constant that knows its name.
pub fn initializer(tensor: &TensorProto) -> Result<Constant, String> {
    let mut constant = constant(tensor)?;
    let learned = is_floating(tensor.data_type) && elements(&constant.dims).is_some_and(|count| count > 1);
    constant.origin = Some(Origin { name: tensor.name.clone(), order: Order::Same, learned });
    Ok(constant)
}

fn numbers(tensor: &TensorProto) -> Option<Data> {
    let raw = &tensor.raw_data;
    Some(match tensor.data_type {
        data_type::INT64 if raw.is_empty() => Data::Integers(tensor.int64_data.clone()),
        data_type::INT32 | data_type::BOOL if raw.is_empty() => {
            Data::Integers(tensor.int32_data.iter().map(|&number| i64::from(number)).collect())
        }
        data_type::INT64 => Data::Integers(raw.as_chunks().0.iter().map(|eight| i64::from_le_bytes(*eight)).collect()),
        data_type::INT32 => {
            Data::Integers(raw.as_chunks().0.iter().map(|four| i64::from(i32::from_le_bytes(*four))).collect())
        }
        data_type::BOOL => Data::Integers(raw.iter().map(|&byte| i64::from(byte)).collect()),
        data_type::FLOAT => {
            let bytes = if raw.is_empty() { &tensor.float_data } else { raw };
            Data::Floats(bytes.as_chunks().0.iter().map(|four| f64::from(f32::from_le_bytes(*four))).collect())
        }
        data_type::DOUBLE => Data::Floats(raw.as_chunks().0.iter().map(|eight| f64::from_le_bytes(*eight)).collect()),
        _ => return None,
    })
}
