//! The library over a real cuDNN, as far as that goes without a driver: every function that this needs is found, descriptors
//! are accepted, and the legacy ones can be read back in the way in which they are here.

use tightfit_test_support::client::{Client, Form};

#[test]
#[ignore = "needs cuDNN 9: TIGHTFIT_TEST_CUDNN names its libcudnn.so.9, as in pip's nvidia-cudnn-cu13"]
fn descriptors_pass_through_to_a_real_cudnn_and_can_be_read_back() {
    let Ok(cudnn) = std::env::var("TIGHTFIT_TEST_CUDNN") else {
        eprintln!("skipped: TIGHTFIT_TEST_CUDNN names no libcudnn.so.9");
        return;
    };
    for (arguments, spatial) in [("n=7", 2), ("n=7 spatial=3 size=5 types=f16-f32", 3), ("n=7 nhwc=1 types=bf16", 2)] {
        let run = Client::new(Form::Loaded, &format!("real=1 {arguments}"))
            .preloaded(&[("WORKSPACE", "64MiB"), ("TUNE", "heuristic")])
            .with("TIGHTFIT_CUDNN", &cudnn)
            .run();
        assert_eq!((run.code, run.status()), (Some(0), "0"), "{}{}", run.words, run.errors);
        assert!(run.errors.is_empty(), "{}", run.errors);
        let version: u32 = run.lines("version")[0].parse().unwrap();
        assert!(version >= 90_000);
        let words = |key| run.lines(key)[0].split(' ').map(|word| word.parse().unwrap()).collect::<Vec<i32>>();
        assert_eq!(words("tensor")[1..3], [2 + spatial, 7]);
        assert_eq!(words("filter")[1..], [1, 2 + spatial, 7]);
        assert_eq!(words("convolution")[..3], [spatial, 1, 1]);
    }
}
