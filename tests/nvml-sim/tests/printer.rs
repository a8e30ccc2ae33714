//! `nvml-sim-smi` on the simulated H200 prints, byte for byte, what `nvidia-smi mig -lgip` and `-lgipp` printed on a real one
//! with driver 580.159.04 and MIG off (`data/h200-lgip.txt`, `data/h200-lgipp.txt`). The tables of instances have the columns
//! of public captures; no real listing of an H200 with instances is at hand.

use std::process::Command;

/// What it prints for a machine.
fn print(gpu: &str, list: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("machine.json");
    std::fs::write(&machine, format!(r#"{{ "gpus": [ {gpu} ] }}"#)).unwrap();
    let library = sim_machine::install::build().unwrap().join("libnvidia_ml_sim.so");
    let output = Command::new(env!("CARGO_BIN_EXE_nvml-sim-smi"))
        .arg("--library")
        .arg(library)
        .args(["mig", list])
        .env("NVML_SIM_MACHINE", &machine)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const H200: &str = r#"{ "model": "H200-141" }"#;

#[test]
fn profiles_are_printed_as_on_a_real_h200() {
    assert_eq!(print(H200, "-lgip"), include_str!("../data/h200-lgip.txt"));
}

#[test]
fn placements_are_printed_as_on_a_real_h200() {
    assert_eq!(print(H200, "-lgipp"), include_str!("../data/h200-lgipp.txt"));
}

#[test]
fn instances_are_printed_with_their_places() {
    assert_eq!(print(H200, "-lgi"), "No MIG-enabled devices found.\n");
    let empty = r#"{ "model": "H200-141", "mig": "enabled" }"#;
    assert_eq!(print(empty, "-lgi"), "No GPU instances found: Not Found\n");
    assert_eq!(print(empty, "-lci"), "No compute instances found: Not Found\n");
    let divided = r#"{ "model": "A100-40", "mig": "enabled", "instances": [
        { "profile": "3g.20gb", "start": 4, "compute": [1, 2] }, { "profile": "1g.5gb", "start": 0 },
        { "profile": "2g.10gb", "start": 2, "compute": [] } ] }"#;
    assert_eq!(
        print(divided, "-lgi"),
        "\
+---------------------------------------------------------+
| GPU instances:                                          |
| GPU   Name               Profile  Instance   Placement  |
|                            ID       ID       Start:Size |
|=========================================================|
|   0  MIG 1g.5gb            19        7          0:1     |
+---------------------------------------------------------+
|   0  MIG 2g.10gb           14        4          2:2     |
+---------------------------------------------------------+
|   0  MIG 3g.20gb            9        2          4:4     |
+---------------------------------------------------------+
"
    );
    assert_eq!(
        print(divided, "-lci"),
        "\
+--------------------------------------------------------------------+
| Compute instances:                                                 |
| GPU     GPU       Name             Profile   Instance   Placement  |
|       Instance                       ID        ID       Start:Size |
|         ID                                                         |
|====================================================================|
|   0      7       MIG 1g.5gb           0         0          0:1     |
+--------------------------------------------------------------------+
|   0      2       MIG 1c.3g.20gb       0         0          2:1     |
+--------------------------------------------------------------------+
|   0      2       MIG 2c.3g.20gb       1         1          0:2     |
+--------------------------------------------------------------------+
"
    );
}
