//! The C functions: each checks its arguments and hands them on.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Mutex;

use tightfit_mock_support::number::DataType;
use tightfit_mock_support::{Table, driver, lock};

use crate::control::{Failure, call, release};
use crate::product::{Matrix, Product};

/// Room for one answer, or null: an out-parameter of C, whose caller owes that it is null or points to room for a `T`.
type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// The settings of a handle.
#[derive(Clone, Copy, Default)]
pub struct Settings {
    stream: usize,
    workspace: usize,
}

/// Handles with their settings.
static HANDLES: Mutex<Table<Settings>> = Mutex::new(Table::new(0x6800_0000));

/// Live handles.
pub fn count(kind: &str) -> Option<u64> {
    (kind == "blas-handles").then(|| lock(&HANDLES).live() as u64)
}

/// Forgets all handles.
pub fn reset() {
    lock(&HANDLES).clear();
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasCreate_v2(handle: Out<usize>) -> c_int {
    call("cublasCreate_v2", || {
        let handle = handle.ok_or(Failure::INVALID_VALUE)?;
        driver::check()?;
        handle.write(lock(&HANDLES).insert(Settings::default()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasDestroy_v2(handle: usize) -> c_int {
    release("cublasDestroy_v2", || Ok(lock(&HANDLES).remove(handle).map(drop)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetVersion_v2(_handle: usize, version: Out<c_int>) -> c_int {
    call("cublasGetVersion_v2", || {
        version.ok_or(Failure::INVALID_VALUE)?.write(130_100);
        Ok(())
    })
}

fn change(handle: usize, change: impl FnOnce(&mut Settings)) -> Result<(), Failure> {
    Ok(lock(&HANDLES).get_mut(handle).map(change)?)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasSetStream_v2(handle: usize, stream: usize) -> c_int {
    call("cublasSetStream_v2", || change(handle, |settings| *settings = Settings { stream, workspace: 0 }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasSetWorkspace_v2(handle: usize, workspace: usize, bytes: usize) -> c_int {
    call("cublasSetWorkspace_v2", || {
        if !workspace.is_multiple_of(256) || bytes == 0 {
            return Err(Failure::INVALID_VALUE);
        }
        change(handle, |settings| settings.workspace = workspace)
    })
}

fn matrix(address: usize, data: c_int, leading: c_int, transposed: c_int) -> Result<Matrix, Failure> {
    let data = match data {
        0 => DataType::F32,
        2 => DataType::F16,
        14 => DataType::Bf16,
        _ => return Err(Failure::NOT_SUPPORTED),
    };
    let leading = usize::try_from(leading).map_err(|_| Failure::INVALID_VALUE)?;
    Ok(Matrix { address, data, leading, transposed: transposed != 0 })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGemmEx(
    handle: usize,
    transpose_a: c_int,
    transpose_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: Option<&f32>,
    a: usize,
    a_type: c_int,
    a_leading: c_int,
    b: usize,
    b_type: c_int,
    b_leading: c_int,
    beta: Option<&f32>,
    c: *mut c_void,
    c_type: c_int,
    c_leading: c_int,
    compute: c_int,
    _algorithm: c_int,
) -> c_int {
    call("cublasGemmEx", || {
        let settings = *lock(&HANDLES).get(handle)?;
        let size = |size: c_int| usize::try_from(size).ok().filter(|&size| size > 0).ok_or(Failure::INVALID_VALUE);
        let product = Product {
            sizes: [size(m)?, size(n)?, size(k)?],
            a: matrix(a, a_type, a_leading, transpose_a)?,
            b: matrix(b, b_type, b_leading, transpose_b)?,
            c: matrix(c as usize, c_type, c_leading, 0)?,
            alpha: *alpha.ok_or(Failure::INVALID_VALUE)?,
            beta: *beta.ok_or(Failure::INVALID_VALUE)?,
            tf32: compute == 77,
        };
        if !matches!(compute, 68 | 69 | 77) {
            return Err(Failure::NOT_SUPPORTED);
        }
        product.check()?;
        if settings.workspace == 0 {
            return Err(Failure::INTERNAL_ERROR);
        }
        let nanos = product.nanos();
        let work: driver::Work = Box::new(move || product.run().err().unwrap_or(0));
        Ok(driver::enqueue(settings.stream, nanos, work)?)
    })
}
