use super::*;

fn terms(members: &[&str], share: u32, quota: Option<u32>) -> AccountSettings {
    AccountSettings {
        members: members.iter().map(|user| (*user).to_owned()).collect(),
        coordinators: Vec::new(),
        share,
        quota,
    }
}

fn accounts(of: &[(&str, AccountSettings)]) -> Result<Accounts, InvalidAccounts> {
    let quotas = [("ada", 14), ("*", 28)].map(|(user, slices)| (user.to_owned(), slices));
    let accounts = of.iter().map(|(name, terms)| ((*name).to_owned(), terms.clone()));
    Accounts::new(quotas.into(), accounts.collect(), Some(Accounts::HALF_LIFE))
}

#[test]
fn an_accounts_usage_is_the_sum_of_its_members() {
    let accounts = accounts(&[("lab", terms(&["ada", "bob"], 3, Some(40)))]).unwrap();
    let had = |user: &str| Millis::from_secs(if user == "ada" { 60 } else { 5 });

    let ada = accounts.account(&"ada".into(), had);
    let cyd = accounts.account(&"cyd".into(), had);

    assert_eq!((&*ada.name, ada.shares, ada.quota), ("account lab", 3, Some(40)));
    assert_eq!(ada.used, Millis::from_secs(65));
    assert_eq!(ada.member, Some(SliceLimit { name: "ada".into(), slices: 14 }));
    assert_eq!((&*cyd.name, cyd.shares, cyd.quota), ("cyd", 1, Some(28)));
    assert_eq!((cyd.used, cyd.member), (Millis::from_secs(5), None));
}

#[test]
fn without_fair_share_no_usage_counts() {
    let accounts = accounts(&[]).unwrap().in_turn();

    assert_eq!(accounts.account(&"ada".into(), |_| Millis::from_secs(9)).used, Millis::ZERO);
}

#[test]
fn each_refused_account_states_what_is_expected() {
    let cases = [
        ("leave it in one", vec![("a", terms(&["ada"], 1, None)), ("b", terms(&["ada"], 1, None))]),
        ("leave it in one", vec![("a", terms(&["ada", "ada"], 1, None))]),
        ("write 1 or more", vec![("a", terms(&["ada"], 0, None))]),
        ("write members", vec![("a", terms(&[], 1, None))]),
        ("letters, digits", vec![("lab a", terms(&["ada"], 1, None))]),
        ("each as its own entry", vec![("a", terms(&["*"], 1, None))]),
    ];
    for (hint, of) in cases {
        let error = accounts(&of).unwrap_err().to_string();
        assert!(error.contains(hint), "{error}");
    }
}

#[test]
fn a_coordinator_has_the_members_of_its_accounts() {
    let mut lab = terms(&["ada", "bob"], 1, None);
    lab.coordinators = vec!["ada".to_owned(), "pi".to_owned()];
    let accounts = accounts(&[("lab", lab), ("other", terms(&["cyd"], 1, None))]).unwrap();

    assert_eq!(accounts.coordinated_by("ada"), ["bob"]);
    assert_eq!(accounts.coordinated_by("pi"), ["ada", "bob"]);
    assert!(accounts.coordinated_by("bob").is_empty());
}
