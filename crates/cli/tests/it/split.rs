//! `tightfit split` as a person or a script meets it.

use crate::folder::{Folder, json};

const CLUSTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/synthetic-mixed-cluster.jsonl");

#[test]
fn rest_above_one_hour_per_sample_is_refused() {
    let folder = Folder::new();
    let split = format!("split --batch 32 --devices K80 --network resnet18 --backend replay:{CLUSTER} --rest 1e18");
    let message = folder.fail(&split, 2);
    assert!(message.contains("per sample"), "{message}");
}

#[test]
fn uneven_split_in_every_format() {
    let folder = Folder::new();
    let split = |devices: &str, more: &str| {
        format!("split --batch 32 --devices {devices} --network resnet18 --backend replay:{CLUSTER} {more}")
    };
    let table = folder.succeed(&split("K80,K80,K20Xm", ""));
    assert!(table.starts_with("resnet18, mini-batch 32: 45.00 ms per step, 1.18x over the even split"), "{table}");
    let found = json(&folder.succeed(&split("K80,K80,K20Xm", "--format json")));
    let batches: Vec<_> = found["devices"].as_array().unwrap().iter().map(|device| &device["batch"]).collect();
    assert_eq!(batches, [12, 12, 8]);
    assert_eq!((&found["time_us"], &found["alone_time_us"]), (&45_000.0.into(), &95_400.0.into()));
    let csv = folder.succeed(&split("K80,K80,K20Xm", "--multiple-of 4 --memory unlimited --format csv"));
    assert_eq!(csv.lines().next(), Some("name,device,steps,batch,time_us,even_batch,even_time_us,alone_time_us"));
    assert!(
        csv.lines().nth(3).unwrap().starts_with("K20Xm,Tesla K20Xm (paper figure 13),measured,8,43363.6,8,"),
        "{csv}"
    );

    // The same from a cache; and an impossible request names the possible ones.
    folder.succeed(&format!("cache import {CLUSTER}"));
    let cached = folder.succeed("split --batch 32 --devices K80,K80,K20Xm --network resnet18 --format json");
    assert_eq!(json(&cached), found);
    assert!(folder.fail(&split("Tesla", ""), 2).contains("Tesla K80"));
    assert!(folder.fail(&split("V100", ""), 2).contains("GTX 750Ti"));
    assert!(folder.fail("split --batch 32 --network resnet18", 2).contains("--devices"));
    assert!(folder.fail(&split("K80", "--multiple-of 3"), 2).contains("power of two"));
    assert!(folder.fail(&split("K80", "--rest -1"), 2).contains("--rest"));
    let unknown = folder.fail(&split("K80", "--memory 8GiB"), 2);
    assert!(
        ["Tesla K80", "do not say how much memory", "8 GiB"].iter().all(|part| unknown.contains(part)),
        "{unknown}"
    );
    for batch in ["0", "1048577", "9223372036854775808", "18446744073709551615"] {
        let unbounded = split("K80", "").replace("--batch 32", &format!("--batch {batch}"));
        assert!(folder.fail(&unbounded, 2).contains("from 1 to 1048576"), "{batch}");
    }
    let other = format!("split --batch 32 --devices K80 --network resnet34 --backend replay:{CLUSTER}");
    assert!(folder.fail(&other, 1).contains("resnet34"));
}
