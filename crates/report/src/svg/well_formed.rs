//! Checks every chart, from nothing to 160 kernels: each is a well-formed document with its labels.

use tightfit_conv::candidate::Limit;
use tightfit_profile::answer::Optimized;
use tightfit_profile::answer::samples;
use tightfit_units::{Bytes, Nanos};

use super::canvas::text_width;
use super::{Curve, allotment, front, limits, per_layer};

/// Parses a document and returns its text; panics if tags do not match, attributes are not quoted, or a number is not
/// finite.
pub fn text_of(svg: &str) -> Vec<String> {
    let (mut open, mut texts) = (Vec::new(), Vec::new());
    let mut rest = svg;
    while let Some(start) = rest.find('<') {
        let text = rest[..start].trim();
        assert!(!text.contains('>'), "{text}");
        if !text.is_empty() {
            texts.push(text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&"));
        }
        let end = start + rest[start..].find('>').expect("a tag that ends");
        let tag = &rest[start + 1..end];
        assert!(!tag.contains('<') && tag.matches('"').count().is_multiple_of(2), "{tag}");
        assert!(!tag.contains("NaN") && !tag.contains("inf") && !tag.contains("\"-\""), "{tag}");
        match (tag.strip_prefix('/'), tag.ends_with('/')) {
            (Some(name), _) => assert_eq!(open.pop(), Some(name), "{tag}"),
            (None, false) => open.push(tag.split(' ').next().unwrap_or_default()),
            (None, true) => {}
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
    texts
}

/// Fails if a shape begins outside of the picture, or upright text ends outside.
fn stays_inside(svg: &str) {
    let number = |element: &str, name: &str| -> Option<f64> {
        let rest = element.split(&format!(" {name}=\"")).nth(1)?;
        rest.split('"').next()?.parse().ok()
    };
    let (width, height) = (number(svg, "width").unwrap(), number(svg, "height").unwrap());
    for element in svg.split('<').skip(2) {
        for (names, most) in [(["x", "x1", "x2", "cx"], width), (["y", "y1", "y2", "cy"], height)] {
            for name in names {
                let value = number(element, name).unwrap_or(0.0);
                assert!((-0.1..=most + 0.1).contains(&value), "{name} of {element}");
            }
        }
        if let Some((tag, text)) = element.split_once('>').filter(|(tag, _)| tag.starts_with("text ")) {
            let (x, long) = (number(tag, "x").unwrap(), text_width(text, number(tag, "font-size").unwrap()));
            let start = x - if tag.contains("\"end\"") {
                long
            } else if tag.contains("\"middle\"") {
                long / 2.0
            } else {
                0.0
            };
            let upright = !tag.contains("rotate");
            assert!(!upright || (start >= -0.5 && start + long <= width + 0.5), "{text} from {start} of {width}");
        }
        if element.starts_with("rect") {
            for name in ["width", "height"] {
                assert!(number(element, name).is_none_or(|value| value >= 0.0), "{name} of {element}");
            }
        }
    }
}

pub fn check(svg: &str, labels: &[&str]) {
    let texts = text_of(svg);
    stays_inside(svg);
    for label in labels {
        assert!(texts.iter().any(|text| text == label), "{label} is not in {texts:?}");
    }
}

#[test]
fn allotments() {
    for kernels in [0, 1, 160] {
        for limit in [Limit::Total, Limit::One, Limit::PerKernel] {
            for bytes in [Bytes::ZERO, Bytes::gib(8), Bytes::UNLIMITED] {
                let optimized = Optimized { limit: limit(bytes), ..samples::network(kernels) };
                let layers: Vec<&str> = optimized.kernels.iter().map(|kernel| kernel.layer.as_str()).collect();
                let svg = allotment("a <network>", &optimized);
                check(&svg, &layers);
                check(&svg, &["a <network>", "forward", "backward-data", "backward-filter", "undivided", "workspace"]);
            }
        }
    }
}

#[test]
fn layers_under_several_limits() {
    for kernels in [0, 1, 160] {
        let optimized = samples::network(kernels);
        let layers: Vec<&str> = optimized.kernels.iter().map(|kernel| kernel.layer.as_str()).collect();
        for results in [&[("8 GiB", &optimized)][..], &[("8 MiB", &optimized), ("64 MiB", &optimized)], &[]] {
            let svg = per_layer("memory and time", results);
            check(&svg, if results.is_empty() { &[] } else { &layers });
            check(&svg, &["feature maps", "weights", "memory"]);
            for (limit, _) in results {
                check(&svg, &[&format!("workspace, {limit}"), &format!("time, {limit}")]);
            }
        }
    }
}

#[test]
fn fronts() {
    check(&front(&"a long title ".repeat(20), &[]), &["mini-batch [samples]"]);
    check(&front("nothing", &[]), &["nothing", "no configuration"]);
    let long: Vec<_> = (0..300).map(|i| samples::configuration(&[(256, "fft", 1000 - i, i)])).collect();
    check(&front("long", &long), &["fft", "16", "299 MiB", "none", "256"]);
    check(&front("one", &long[..1]), &["fft", "1", "none"]);
    for kernel in &samples::network(13).kernels {
        let front_of = kernel.front.as_deref().unwrap();
        check(&front(&kernel.layer, front_of), &["implicit-gemm", "winograd-nonfused", "fft-tiling", "6", "32 x 8"]);
    }
}

#[test]
fn times_against_limits() {
    check(&limits("nothing", "limit", &[]), &["nothing", "no configuration"]);
    let curve = |name: &str, limits: &[Bytes]| Curve {
        name: name.to_owned(),
        points: limits.iter().enumerate().map(|(i, &bytes)| (bytes, Nanos(40_000_000 - i as u64))).collect(),
    };
    let all = [Bytes::ZERO, Bytes(1), Bytes::mib(8), Bytes::gib(1), Bytes::UNLIMITED];
    let svg =
        limits("alexnet", "workspace limit", &[curve("undivided", &all), curve("all", &all[2..3]), curve("fit", &[])]);
    check(&svg, &["undivided", "all", "fit", "workspace limit", "time [ms]", "none", "unlimited", "40"]);
}
