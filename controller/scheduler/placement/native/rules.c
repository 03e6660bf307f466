/* Rules about replicas in one domain: topology spread constraints, pod affinity and anti-affinity. */
#include <string.h>

#include "state.h"

/* Least count of a rule's eligible domains: the global minimum from which skew is measured. */
static int64_t find_min_counted(const State *state, int64_t rule) {
  const Problem *problem = state->problem;
  int64_t least = INT64_MAX;
  if (problem->rule_lacks_domains[rule]) return 0;
  for (int64_t domain = problem->domain_start[rule]; domain < problem->domain_start[rule + 1]; domain++)
    if (problem->counts_for_minimum[domain] && state->n_counted[domain] < least) least = state->n_counted[domain];
  return least == INT64_MAX ? 0 : least;
}

void rules_init(State *state) {
  const Problem *problem = state->problem;
  int64_t domains = problem->rules ? problem->domain_start[problem->rules] : 0;
  state->n_counted = allocate(domains, sizeof(int64_t));
  state->n_owners = allocate(domains, sizeof(int64_t));
  state->min_counted = allocate(problem->rules, sizeof(int64_t));
  memcpy(state->n_counted, problem->bound_counted, (size_t)domains * sizeof(int64_t));
  memcpy(state->n_owners, problem->bound_owners, (size_t)domains * sizeof(int64_t));
  for (int64_t rule = 0; rule < problem->rules; rule++) state->min_counted[rule] = find_min_counted(state, rule);
}

/* Whether the domains with owners, except the two between which a replica moves, exceed this minimum by at most the skew. */
static int others_keep_skew(const State *state, int64_t rule, int64_t min, int64_t origin, int64_t target) {
  const Problem *problem = state->problem;
  for (int64_t domain = problem->domain_start[rule]; domain < problem->domain_start[rule + 1]; domain++) {
    int64_t skew = state->n_counted[domain] - min;
    if (domain != origin && domain != target && state->n_owners[domain] && skew > problem->rule_max_skew[rule]) return 0;
  }
  return 1;
}

/* In the next three functions a replica moves between two domains of the rule, counted from 0; -1 stands for no domain.
 *
 * topologySpreadConstraints: no domain exceeds the minimum by more than the skew, also after the replica has left `from_domain`. */
static int spread_allows(const State *state, int64_t rule, int role, int32_t from_domain, int32_t to_domain) {
  const Problem *problem = state->problem;
  int64_t first = problem->domain_start[rule], min = state->min_counted[rule];
  int is_counted = role & COUNTED;
  if (!(role & OWNER) || (to_domain >= 0 && from_domain == to_domain)) return 1;
  if (to_domain < 0) return 0;
  int lowers_min = is_counted && from_domain >= 0 && problem->counts_for_minimum[first + from_domain] &&
                   !problem->rule_lacks_domains[rule] && state->n_counted[first + from_domain] - 1 < min;
  if (lowers_min) {
    min = state->n_counted[first + from_domain] - 1;
    if (!others_keep_skew(state, rule, min, first + from_domain, first + to_domain)) return 0;
  }
  return state->n_counted[first + to_domain] + (is_counted ? 1 : 0) - min <= problem->rule_max_skew[rule];
}

static int anti_affinity_allows(const State *state, int64_t rule, int role, int32_t from_domain, int32_t to_domain) {
  if (to_domain < 0) return 1;
  int is_counted = (role & COUNTED) != 0, is_owner = (role & OWNER) != 0;
  int64_t domain = state->problem->domain_start[rule] + to_domain, counted = state->n_counted[domain], owners = state->n_owners[domain];
  if (from_domain == to_domain) {
    counted -= is_counted;
    owners -= is_owner;
  }
  return !(is_owner && counted > 0) && !(is_counted && owners > 0);
}

static int affinity_allows(const State *state, int64_t rule, int role, int32_t from_domain, int32_t to_domain) {
  const Problem *problem = state->problem;
  int64_t first = problem->domain_start[rule];
  int is_counted = (role & COUNTED) != 0, is_owner = (role & OWNER) != 0;
  int is_last_counted = is_counted && from_domain >= 0 && from_domain != to_domain && state->n_counted[first + from_domain] == 1;
  if (is_last_counted && state->n_owners[first + from_domain] - is_owner > 0) return 0;
  if (!is_owner) return 1;
  if (to_domain < 0) return 0;
  if (state->n_counted[first + to_domain] - (from_domain == to_domain ? is_counted : 0) > 0) return 1;
  if (!is_counted) return 0;
  /* As in kube-scheduler, the first pod that its own term counts may be in any domain. */
  for (int64_t domain = first; domain < problem->domain_start[rule + 1]; domain++)
    if (state->n_counted[domain] - (domain == first + from_domain ? 1 : 0) > 0) return 0;
  return 1;
}

/* Whether all required rules allow a replica on a host if it leaves `from`. */
int rules_allow(const State *state, int32_t class, int32_t from, int32_t to) {
  const Problem *problem = state->problem;
  for (int64_t entry = problem->role_start[class]; entry < problem->role_start[class + 1]; entry++) {
    int64_t rule = problem->role_rule[entry];
    int role = problem->role[entry], kind = problem->rule_kind[rule];
    int32_t from_domain = domain_at(problem, rule, from), to_domain = domain_at(problem, rule, to);
    if (kind == RULE_SPREAD && !spread_allows(state, rule, role, from_domain, to_domain)) return 0;
    if (kind == RULE_ANTI_AFFINITY && !anti_affinity_allows(state, rule, role, from_domain, to_domain)) return 0;
    if (kind == RULE_AFFINITY && !affinity_allows(state, rule, role, from_domain, to_domain)) return 0;
  }
  return 1;
}

/* Whether a replica may leave a host without breaking a required rule of the replicas that stay. */
int rules_allow_leaving(const State *state, int32_t class, int32_t from) {
  const Problem *problem = state->problem;
  for (int64_t entry = problem->role_start[class]; entry < problem->role_start[class + 1]; entry++) {
    int64_t rule = problem->role_rule[entry];
    int32_t from_domain = domain_at(problem, rule, from);
    if (from_domain < 0 || !(problem->role[entry] & COUNTED)) continue;
    int64_t domain = problem->domain_start[rule] + from_domain;
    int64_t n_staying = state->n_counted[domain] - 1, is_owner = (problem->role[entry] & OWNER) != 0;
    if (problem->rule_kind[rule] == RULE_AFFINITY && n_staying == 0 && state->n_owners[domain] - is_owner > 0) return 0;
    int lowers_min = problem->rule_kind[rule] == RULE_SPREAD && problem->counts_for_minimum[domain] && !problem->rule_lacks_domains[rule] &&
                     n_staying < state->min_counted[rule];
    if (lowers_min && !others_keep_skew(state, rule, n_staying, domain, domain)) return 0;
  }
  return 1;
}

/* Change of the pairs of owner and counted pod in a domain if it gains (1) or loses (-1) a replica with this role. */
static int64_t pairs_delta(const State *state, int64_t domain, int role, int step) {
  int64_t counted = state->n_counted[domain], owners = state->n_owners[domain];
  return (owners + ((role & OWNER) ? step : 0)) * (counted + ((role & COUNTED) ? step : 0)) - owners * counted;
}

/* Change of the cost of preferences if a replica moves. */
double rules_delta(const State *state, int32_t class, int32_t from, int32_t to) {
  const Problem *problem = state->problem;
  double sum = 0;
  for (int64_t entry = problem->role_start[class]; entry < problem->role_start[class + 1]; entry++) {
    int64_t rule = problem->role_rule[entry], pairs = 0;
    int32_t from_domain = domain_at(problem, rule, from), to_domain = domain_at(problem, rule, to);
    if (problem->rule_kind[rule] != RULE_PREFERENCE || from_domain == to_domain) continue;
    if (to_domain >= 0) pairs += pairs_delta(state, problem->domain_start[rule] + to_domain, problem->role[entry], 1);
    if (from_domain >= 0) pairs += pairs_delta(state, problem->domain_start[rule] + from_domain, problem->role[entry], -1);
    sum += problem->rule_price[rule] * (double)pairs;
  }
  return sum;
}

/* Counts a replica that a host gains (1) or loses (-1). */
void rules_update_counts(State *state, int32_t class, int32_t host, int step) {
  const Problem *problem = state->problem;
  for (int64_t entry = problem->role_start[class]; entry < problem->role_start[class + 1]; entry++) {
    int64_t rule = problem->role_rule[entry], domain = problem->domain_start[rule] + domain_at(problem, rule, host);
    if (domain < problem->domain_start[rule]) continue;
    if (problem->role[entry] & OWNER) state->n_owners[domain] += step;
    if (!(problem->role[entry] & COUNTED)) continue;
    state->n_counted[domain] += step;
    if (problem->rule_kind[rule] != RULE_SPREAD || !problem->counts_for_minimum[domain] || problem->rule_lacks_domains[rule]) continue;
    int64_t count = state->n_counted[domain], min = state->min_counted[rule];
    if (step < 0 && count < min) state->min_counted[rule] = count;
    if (step > 0 && count - 1 == min) state->min_counted[rule] = find_min_counted(state, rule);
  }
}
