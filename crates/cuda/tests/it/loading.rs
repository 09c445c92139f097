//! Finding the libraries, and naming the faults of unusable ones; on the mock libraries.

use std::path::PathBuf;
use std::sync::Arc;

use tightfit_conv::Backend;
use tightfit_cuda::doctor::{State, doctor};
use tightfit_cuda::safe::{Context, DeviceBuffer, Download, PinnedBuffer, Stream, Upload};
use tightfit_cuda::sys::Unresolved;
use tightfit_cuda::{CudaBackend, CudaError, Options};
use tightfit_test_support::mocks::Mocks;

#[test]
fn the_device_is_named_by_itself_and_its_libraries() {
    let mocks = Mocks::new();
    let backend = mocks.backend();
    let device = backend.device();
    assert_eq!((device.backend.as_str(), device.name.as_str()), ("cuda", "Tightfit Mock GPU"));
    assert!(device.library.starts_with("cudnn 9.19.0 / ") && device.library.ends_with("cuda 13.0"), "{device}");
    let (free, total) = backend.memory().unwrap();
    assert!(free.0 > 0 && free <= total);
}

#[test]
fn an_old_cudnn_is_refused_by_its_version() {
    let mocks = Mocks::new();
    mocks.set_cudnn_version(8907);
    let error = CudaBackend::open(&mocks.options()).err().unwrap();
    assert!(matches!(error, CudaError::TooOld { .. }) && error.to_string().contains("is cuDNN 8.9.7"), "{error}");
    mocks.assert_nothing_left("a version too old");
}

#[test]
fn the_wrong_library_lacks_a_symbol() {
    let mocks = Mocks::new();
    let Options { cuda, .. } = mocks.options();
    let error = CudaBackend::open(&Options { cudnn: cuda.clone(), cuda, ..Options::default() }).err().unwrap();
    assert!(matches!(error, CudaError::Symbol(Unresolved { symbol: "cudnnGetVersion", .. })), "{error}");
    mocks.assert_nothing_left("a missing symbol");
}

#[test]
fn a_missing_library_is_an_error_with_the_place_and_the_variable_to_set() {
    let mocks = Mocks::new();
    let cudnn = Some(PathBuf::from("/nowhere/libcudnn.so.9"));
    let error = CudaBackend::open(&Options { cudnn, ..mocks.options() }).err().unwrap().to_string();
    assert!(error.contains("/nowhere/libcudnn.so.9") && error.contains("TIGHTFIT_CUDNN"), "{error}");
}

#[test]
fn missing_devices_are_reported_with_the_count() {
    let mocks = Mocks::new();
    for (devices, device) in [(1, 1), (2, 7)] {
        mocks.set_devices(devices);
        let error = CudaBackend::open(&Options { device, ..mocks.options() }).err().unwrap();
        assert!(matches!(error, CudaError::NoDevice { count, .. } if count as u64 == devices), "{error}");
    }
}

#[test]
fn the_doctor_reports_what_it_found_and_gives_advice() {
    let mocks = Mocks::new();
    let findings = doctor(&mocks.options());
    assert!(findings.iter().all(|finding| finding.is_found()), "{findings:?}");
    let nowhere = Some(PathBuf::from("/nowhere"));
    let findings = doctor(&Options { cudnn: nowhere.clone(), ..mocks.options() });
    let states: Vec<_> = findings.iter().map(|finding| &finding.state).collect();
    assert!(
        matches!(
            states[..],
            [State::Found { .. }, State::Found { .. }, State::Missing { .. }, State::NotReached, State::NotReached]
        ),
        "{findings:?}"
    );
    assert!(findings[2].to_string().contains("pip install"), "{}", findings[2]);
    let findings = doctor(&Options { cuda: nowhere.clone(), cudnn: nowhere, device: 3, ..Options::default() });
    assert!(findings.iter().all(|finding| !finding.is_found()));
    mocks.fail("cudnnCreate", 1, 3005);
    let findings = doctor(&mocks.options());
    assert!(findings[4].to_string().contains("newer driver"), "{}", findings[4]);
    mocks.assert_nothing_left("the doctor");
}

#[test]
fn asynchronous_copies_round_trip() {
    let mocks = Mocks::new();
    mocks.delay(500);
    let Options { cuda, .. } = mocks.options();
    let context = Arc::new(Context::open(cuda.as_deref(), 0).unwrap());
    let stream = Stream::new(&context).unwrap();
    for len in [0, 1, 4096] {
        let mut host = PinnedBuffer::new(&context, len).unwrap();
        for (place, byte) in host.iter_mut().enumerate() {
            *byte = place as u8;
        }
        let upload = Upload::start(host, DeviceBuffer::new(&context, len).unwrap(), &stream).unwrap();
        let (mut host, device) = upload.wait().unwrap();
        host.fill(0);
        let (_, host) = Download::start(device, host, &stream).unwrap().wait().unwrap();
        assert!(host.iter().enumerate().all(|(place, byte)| *byte == place as u8));
    }
    let (host, device) = (PinnedBuffer::new(&context, 3).unwrap(), DeviceBuffer::new(&context, 4).unwrap());
    assert!(matches!(Upload::start(host, device, &stream), Err(CudaError::OutOfBounds { .. })));
    // One that nobody waits for is waited for when it is dropped.
    let (host, device) = (PinnedBuffer::new(&context, 4).unwrap(), DeviceBuffer::new(&context, 4).unwrap());
    drop(Upload::start(host, device, &stream).unwrap());
    drop((stream, context));
    mocks.assert_nothing_left("copies");
}

#[test]
fn parts_outside_a_buffer_are_refused() {
    let mocks = Mocks::new();
    let Options { cuda, .. } = mocks.options();
    let context = Arc::new(Context::open(cuda.as_deref(), 0).unwrap());
    let mut buffer = DeviceBuffer::new(&context, 16).unwrap();
    buffer.slice_mut(4..8).unwrap().upload(&[1, 2, 3, 4]).unwrap();
    assert!(buffer.slice_mut(4..8).unwrap().upload(&[1]).is_err());
    assert!(buffer.slice(8..17).is_err());
    let (start, end) = (9, 8);
    assert!(buffer.slice(start..end).is_err());
    let part = buffer.slice(4..8).unwrap();
    assert!(part.part(2..5).is_err());
    let mut bytes = [0; 2];
    part.part(1..3).unwrap().download(&mut bytes).unwrap();
    assert_eq!(bytes, [2, 3]);
}

#[test]
fn an_error_in_a_destructor_surfaces_once_at_the_next_call() {
    let mocks = Mocks::new();
    let Options { cuda, .. } = mocks.options();
    let context = Arc::new(Context::open(cuda.as_deref(), 0).unwrap());
    let buffer = DeviceBuffer::new(&context, 16).unwrap();
    mocks.fail("cuMemFree_v2", 1, 1);
    drop(buffer);
    let error = context.synchronize().unwrap_err();
    assert!(matches!(error, CudaError::Driver { call: "cuMemFree", .. }), "{error}");
    context.synchronize().unwrap();
}
