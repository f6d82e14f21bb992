extern "C" { fn part() -> i32; }
fn main() { println!("{} 3 7 2", unsafe { part() }); }
