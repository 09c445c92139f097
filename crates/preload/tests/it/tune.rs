use tightfit_test_support::client::{Client, Form};
#[test]
fn tries() {
    for args in [
        "engine=0 c=4 k=4 times=400",
        "engine=2 c=4 k=4 times=400",
        "op=filter engine=2 types=f16-f32 c=4 k=4 times=400",
    ] {
        let run = Client::new(Form::Linked, args).preloaded(&[("WORKSPACE", "auto"), ("LOG", "1")]).run();
        println!("{args}\n{}\n{}\n{:#}", run.errors, run.words, run.report.unwrap());
    }
}
