//! The plan as one self-contained HTML page: no network access, inline SVG pictures, and a short script for search and zoom. The page is complete
//! without scripts.

use tightfit_conv::Device;
use tightfit_plan::Plan;
use tightfit_units::Bytes;

use super::table::summary;
use super::{grid, pictures};
use crate::svg::canvas::escape;
use crate::{Terminal, rounded};

/// The captions of the pictures.
const MEMORY: &str = "Bytes of live blocks over one step, by kind. Weights, their gradients and momentum stay; maps grow going forward \
and shrink going backward; offloading leaves a valley between. The dashed line is the budget.";
const ARENA: &str = "Every block at its place: as high as its bytes, as long as its life. Point at a box for its name, size, life and \
fate; turn the wheel to enlarge, drag to move, double-click to see all.";
const STREAMS: &str =
    "The work of each stream over time, with the compute stream's waits for copies. Point at a bar for details.";
const TOTALS: &str = "Peak and average live bytes compared with plain, the step without a plan, and with the baseline as the \
vDNN paper counts. The paper leaves out weight gradients, momentum and what layers save; its baseline allocates weights, every feature map, one dX, one \
dY and one workspace, each as large as the largest.";
const KINDS: &str = "The content of the arena at the peak, by kind.";
const LAYERS: &str = "Input and output maps, weights, and the larger workspace of every layer for the whole mini-batch, and the time of \
its passes.";
const MAPS: &str = "Every feature map: its bytes, whether it stays, goes or is copied to the host, and how long after its last forward \
use it is read again.";

/// Writes the plan as an HTML page. The times were measured on `device`.
///
/// **Source** of the pictures: Rhu et al. 2016, figures 1 (working set of layers), 3 (breakdown), 4 (layers), 9
/// (average and maximum), and 10 (offloaded bytes), for this one plan.
pub fn page(plan: &Plan, device: &Device) -> String {
    let title = format!("{}, mini-batch {}, {}", plan.network, plan.batch, plan.options.policy);
    let mut page = three(plan) + &preformatted(&summary(plan, device));
    page += "<p><label>Find a layer: <input id=\"find\" type=\"search\"/></label></p>\n";
    for (heading, text, picture) in [
        ("Memory over time", MEMORY, pictures::memory(plan)),
        ("The arena", ARENA, pictures::arena(plan)),
        ("Streams", STREAMS, pictures::streams(plan)),
        ("Peak and average", TOTALS, pictures::totals(plan)),
        ("By kind", KINDS, pictures::kinds(plan)),
        ("By layer", LAYERS, pictures::layers(plan)),
        ("Feature maps", MAPS, pictures::maps(plan)),
    ] {
        page += &format!("<h2>{heading}</h2>\n<p>{}</p>\n<div>{picture}</div>\n", escape(text));
    }
    page += "<h2>Every layer</h2>\n";
    page += &preformatted(&grid(plan).table(Terminal::default()));
    framed(&title, &page)
}

/// The answer to a plan in three numbers.
fn three(plan: &Plan) -> String {
    let within = match plan.options.budget {
        Bytes::UNLIMITED => "peak".to_owned(),
        budget => format!("peak, of {budget}"),
    };
    let overhead = rounded(plan.overhead() * 100.0, 1);
    let numbers = [
        (plan.peak.to_string(), within),
        (plan.least.rounded_up(), "least budget".to_owned()),
        (plan.step_time.to_string(), format!("a step, {overhead}% over plain")),
    ];
    in_large(&numbers)
}

/// Numbers in large letters, each above its meaning.
pub(super) fn in_large(numbers: &[(String, String)]) -> String {
    let cell = |(number, what): &(String, String)| format!("<div><b>{}</b>{}</div>", escape(number), escape(what));
    format!("<div class=\"three\">{}</div>\n", numbers.iter().map(cell).collect::<String>())
}

/// A whole page with this title and body.
pub(super) fn framed(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

pub(super) fn preformatted(text: &str) -> String {
    format!("<pre>{}</pre>\n", escape_lines(text))
}

/// Escapes text, keeping its lines.
fn escape_lines(text: &str) -> String {
    text.lines().map(escape).collect::<Vec<_>>().join("\n")
}

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

#[cfg(test)]
mod tests {
    use tightfit_plan::Policy;

    use super::super::samples;
    use super::*;
    use crate::svg::well_formed::text_of;

    #[test]
    fn the_page_is_well_formed_and_self_contained() {
        for plan in [samples::small(), samples::planned("googlenet", 16, Policy::VdnnConv, Bytes::gib(2))] {
            let page = page(&plan, &samples::device());
            let (before, script) = page.split_once("<script>").unwrap();
            let (script, after) = script.split_once("</script>").unwrap();
            assert_eq!(script, SCRIPT);
            assert!(
                page.contains("<meta name=\"viewport\" content=\"width=device-width"),
                "phones show it at their width"
            );
            // Style and script are no markup.
            let (head, rest) = before.split_once("<style>").unwrap();
            let whole = format!("{head}{}{after}", rest.split_once("</style>").unwrap().1);
            let body = whole.strip_prefix("<!DOCTYPE html>\n").unwrap();
            let texts = text_of(body);
            for part in ["least budget", "Memory over time", "Streams", "Every layer", &plan.layers[1].name] {
                assert!(texts.iter().any(|text| text.contains(part)), "{part}");
            }
            assert!(texts.iter().any(|text| text.contains("a <device> (cudnn 9)")), "escaped");
            for outside in ["http:", "https:", "<link", "url(", "src=", "fetch(", "import "] {
                let inside = page.replace("http://www.w3.org/2000/svg", "");
                assert!(!inside.contains(outside), "{outside}");
            }
        }
    }
}
