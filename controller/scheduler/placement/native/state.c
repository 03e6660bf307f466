#include "state.h"

#include <stdlib.h>
#include <string.h>

static inline double latency(const Problem *p, int64_t table, int64_t from, int64_t to) {
  return p->latency[(table * p->zones + from) * p->zones + to];
}
static inline int violates(const Problem *p, int64_t table, int64_t from, int64_t to) {
  return p->violates_limit[(table * p->zones + from) * p->zones + to];
}

static inline int32_t zone_at(const Problem *p, int32_t host) { return host < 0 ? -1 : p->zone_of[host]; }

/* Cost of one caller in a zone to one replica in another, when every replica answers alike. */
static inline double pair_cost(const State *s, int64_t e, int64_t from, int64_t to) {
  const Problem *p = s->p;
  double cost = s->pair_weight[e] * latency(p, p->table[e], from, to);
  return violates(p, p->table[e], from, to) ? cost + p->limit_price : cost;
}

/* Change of `to_all` in a zone, if a replica of the callee moves between two zones. */
static inline double to_all_delta(const State *s, int64_t e, int64_t zone, int64_t from, int64_t to) {
  return (to >= 0 ? pair_cost(s, e, zone, to) : 0) - (from >= 0 ? pair_cost(s, e, zone, from) : 0);
}

/* Pairs of an edge within one host; with ROUTE_NODE, in units of 1 / total of the callee, the calls that stay there
 * without loading a replica above its fair share. */
static inline int64_t same_host_calls(const Problem *p, int64_t e, int64_t callers, int64_t called) {
  if (p->routing[e] != ROUTE_NODE) return callers * called;
  int64_t wanted = callers * p->total[p->callee[e]], fair = called * p->total[p->caller[e]];
  return wanted < fair ? wanted : fair;
}

/* Change of same_host_calls on a host, if it gains (1) or loses (-1) a replica of the caller or the callee. */
static inline int64_t same_host_delta(const State *s, int64_t e, int as_callee, int32_t host, int step) {
  const Problem *p = s->p;
  int64_t callers = s->on_host[p->caller[e] * p->hosts + host], called = s->on_host[p->callee[e] * p->hosts + host];
  if (!(as_callee ? callers : called)) return 0;
  return same_host_calls(p, e, callers + (as_callee ? 0 : step), called + (as_callee ? step : 0)) - same_host_calls(p, e, callers, called);
}

/* Cost of all calls of an edge from one zone.
 *
 * Any replica answers: every pair counts. By zone or node, kube-proxy's rules: the caller's node (by node), then its zone if
 * a replica of the callee is there, then all; zones do not count while a replica is on a node without one. A call that loads
 * a replica above its fair share costs as much as a call that leaves the zone. `Endpoints` in cluster/services.py decides the
 * same for a single caller.
 */
static double cost_from_zone(const State *s, int64_t e, int64_t z, int64_t callers, int64_t called, int64_t same_host, double to_all,
                             int64_t n_unzoned) {
  if (!callers) return 0;
  const Problem *p = s->p;
  int64_t t = p->table[e], of_caller = p->total[p->caller[e]], of_callee = p->total[p->callee[e]];
  double in_zone = latency(p, t, z, z), host_gain = in_zone - p->host_latency[t], caller_weight = s->pair_weight[e] * (double)of_callee;
  int is_by_zone = p->routing[e] != ROUTE_ANY && p->has_zone_label[z] && called && !n_unzoned;
  if (!is_by_zone && p->routing[e] != ROUTE_NODE)
    return (double)callers * to_all - (double)same_host * (s->pair_weight[e] * host_gain + (violates(p, t, z, z) ? p->limit_price : 0));
  double staying = p->routing[e] == ROUTE_NODE ? (double)same_host / (double)of_callee : 0;
  if (!is_by_zone) return ((double)callers - staying) * to_all + staying * caller_weight * p->host_latency[t];
  double cost = (double)callers * caller_weight * in_zone;
  cost -= caller_weight * host_gain * (p->routing[e] == ROUTE_NODE ? staying : (double)same_host / (double)called);
  int64_t excess = callers * of_callee - called * of_caller;
  if (excess > 0) cost += p->overload_price * caller_weight * s->mean_detour[t * p->zones + z] * (double)excess / (double)of_callee;
  return cost;
}

/* cost_from_zone of the current placement. */
static inline double current_cost_from_zone(const State *s, int64_t e, int64_t z) {
  const Problem *p = s->p;
  int64_t b = p->callee[e], k = e * p->zones + z;
  return cost_from_zone(s, e, z, s->in_zone[p->caller[e] * p->zones + z], s->in_zone[b * p->zones + z], s->same_host[k], s->to_all[k],
                        s->n_unzoned[b]);
}

static double *zeroed_doubles(int64_t n) { return calloc((size_t)(n ? n : 1), sizeof(double)); }
static int64_t *zeroed_longs(int64_t n) { return calloc((size_t)(n ? n : 1), sizeof(int64_t)); }
static int32_t *zeroed_ints(int64_t n) { return calloc((size_t)(n ? n : 1), sizeof(int32_t)); }

static void index_workloads(State *s) {
  const Problem *p = s->p;
  s->adjacent_start = zeroed_longs(p->workloads + 1);
  s->adjacent = zeroed_longs(p->edges * 2);
  s->member_start = zeroed_longs(p->workloads + 1);
  s->member = zeroed_ints(p->replicas);
  for (int64_t e = 0; e < p->edges; e++) s->adjacent_start[p->caller[e] + 1]++, s->adjacent_start[p->callee[e] + 1]++;
  for (int64_t i = 0; i < p->replicas; i++) s->member_start[p->workload_of[p->class_of[i]] + 1]++;
  for (int64_t w = 0; w < p->workloads; w++) {
    s->adjacent_start[w + 1] += s->adjacent_start[w];
    s->member_start[w + 1] += s->member_start[w];
  }
  int64_t *edge_end = zeroed_longs(p->workloads), *member_end = zeroed_longs(p->workloads);
  for (int64_t e = 0; e < p->edges; e++) {
    int32_t a = p->caller[e], b = p->callee[e];
    s->adjacent[s->adjacent_start[a] + edge_end[a]++] = e * 2;
    s->adjacent[s->adjacent_start[b] + edge_end[b]++] = e * 2 + 1;
  }
  for (int32_t i = 0; i < p->replicas; i++) {
    int32_t w = p->workload_of[p->class_of[i]];
    s->member[s->member_start[w] + member_end[w]++] = i;
  }
  free(edge_end);
  free(member_end);
}

static void init_edge_costs(State *s) {
  const Problem *p = s->p;
  int64_t zones = p->zones, tables = p->tables ? p->tables : 1;
  s->pair_weight = zeroed_doubles(p->edges);
  s->mean_detour = zeroed_doubles(tables * zones);
  s->same_host = zeroed_longs(p->edges * zones);
  s->to_all = zeroed_doubles(p->edges * zones);
  s->zone_cost = zeroed_doubles(p->edges * zones);
  for (int64_t t = 0; t < p->tables; t++)
    for (int64_t z = 0; z < zones; z++) {
      double sum = 0;
      for (int64_t y = 0; y < zones; y++) sum += y == z ? 0 : latency(p, t, z, y) - latency(p, t, z, z);
      s->mean_detour[t * zones + z] = zones > 1 && sum > 0 ? sum / (double)(zones - 1) : 0;
    }
  for (int64_t e = 0; e < p->edges; e++) {
    int64_t a = p->caller[e], b = p->callee[e];
    s->pair_weight[e] = p->weight[e] / ((double)p->total[a] * (double)p->total[b]);
    for (int64_t h = 0; h < p->hosts; h++)
      if (s->on_host[a * p->hosts + h] && s->on_host[b * p->hosts + h])
        s->same_host[e * zones + p->zone_of[h]] += same_host_calls(p, e, s->on_host[a * p->hosts + h], s->on_host[b * p->hosts + h]);
    for (int64_t z = 0; z < zones; z++) {
      for (int64_t y = 0; y < zones; y++)
        if (s->in_zone[b * zones + y]) s->to_all[e * zones + z] += (double)s->in_zone[b * zones + y] * pair_cost(s, e, z, y);
      s->zone_cost[e * zones + z] = current_cost_from_zone(s, e, z);
    }
  }
}

/* Least count of the eligible domains of a rule, the global minimum that skew is measured from. */
static int64_t find_min_counted(const State *s, int64_t rule) {
  const Problem *p = s->p;
  int64_t least = INT64_MAX;
  if (p->rule_lacks_domains[rule]) return 0;
  for (int64_t d = p->domain_start[rule]; d < p->domain_start[rule + 1]; d++)
    if (p->eligible[d] && s->n_counted[d] < least) least = s->n_counted[d];
  return least == INT64_MAX ? 0 : least;
}

State *state_new(const Problem *p, uint64_t seed) {
  State *s = calloc(1, sizeof(State));
  s->p = p;
  s->random = seed * 0x9E3779B97F4A7C15ULL + 0x1234567ULL;
  if (!s->random) s->random = 1;
  s->host_of = zeroed_ints(p->replicas);
  s->list_index = zeroed_ints(p->replicas);
  s->replicas_on = calloc((size_t)(p->hosts ? p->hosts : 1), sizeof(ReplicaList));
  s->free = zeroed_longs(p->hosts * p->resources);
  memcpy(s->free, p->free, (size_t)(p->hosts * p->resources) * sizeof(int64_t));
  s->request = zeroed_longs(p->classes * p->resources);
  for (int64_t k = 0; k < p->classes; k++)
    for (int64_t a = p->request_start[k]; a < p->request_start[k + 1]; a++)
      s->request[k * p->resources + p->request_resource[a]] += p->request_amount[a];
  s->on_host = zeroed_ints(p->workloads * p->hosts);
  s->in_zone = zeroed_longs(p->workloads * p->zones);
  s->n_unzoned = zeroed_longs(p->workloads);
  s->n_on_host = zeroed_ints(p->hosts);
  for (int64_t i = 0; i < p->replicas; i++) s->host_of[i] = -1;
  for (int64_t w = 0; w < p->workloads; w++)
    for (int64_t f = p->fixed_start[w]; f < p->fixed_start[w + 1]; f++) {
      s->on_host[w * p->hosts + p->fixed_host[f]]++;
      s->n_on_host[p->fixed_host[f]]++;
      s->in_zone[w * p->zones + p->zone_of[p->fixed_host[f]]]++;
      if (!p->has_zone_label[p->zone_of[p->fixed_host[f]]]) s->n_unzoned[w]++;
    }
  index_workloads(s);
  init_edge_costs(s);
  int64_t domains = p->rules ? p->domain_start[p->rules] : 0;
  s->n_counted = zeroed_longs(domains);
  s->n_owners = zeroed_longs(domains);
  s->min_counted = zeroed_longs(p->rules);
  memcpy(s->n_counted, p->bound_counted, (size_t)domains * sizeof(int64_t));
  memcpy(s->n_owners, p->bound_owners, (size_t)domains * sizeof(int64_t));
  for (int64_t r = 0; r < p->rules; r++) s->min_counted[r] = find_min_counted(s, r);
  return s;
}

void state_free(State *s) {
  for (int64_t h = 0; h < s->p->hosts; h++) free(s->replicas_on[h].item);
  void *all[] = {s->host_of, s->list_index, s->replicas_on, s->free, s->request, s->on_host, s->in_zone, s->n_unzoned, s->same_host,
                 s->to_all, s->zone_cost, s->mean_detour, s->pair_weight, s->adjacent_start, s->adjacent, s->member_start, s->member,
                 s->n_counted, s->n_owners, s->min_counted, s->n_on_host};
  for (unsigned i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
  free(s);
}

/* topologySpreadConstraints: a domain exceeds the minimum by at most the skew, also after the replica has left its domain. */
static int spread_allows(const State *s, int64_t r, int role, int32_t from, int32_t to) {
  const Problem *p = s->p;
  int64_t base = p->domain_start[r], max_skew = p->rule_max_skew[r], min = s->min_counted[r];
  int is_counted = role & COUNTED;
  if (!(role & OWNER)) return 1;
  if (to < 0) return 0;
  if (from == to) return 1;
  int64_t count = s->n_counted[base + to] + (is_counted ? 1 : 0);
  if (is_counted && from >= 0 && p->eligible[base + from] && !p->rule_lacks_domains[r] && s->n_counted[base + from] - 1 < min) {
    min = s->n_counted[base + from] - 1;
    for (int64_t d = base; d < p->domain_start[r + 1]; d++)
      if (d != base + from && d != base + to && s->n_owners[d] && s->n_counted[d] - min > max_skew) return 0;
  }
  return count - min <= max_skew;
}

static int anti_affinity_allows(const State *s, int64_t r, int role, int32_t from, int32_t to) {
  if (to < 0) return 1;
  int64_t d = s->p->domain_start[r] + to, counted = s->n_counted[d], owners = s->n_owners[d];
  if (from == to) counted -= (role & COUNTED) ? 1 : 0, owners -= (role & OWNER) ? 1 : 0;
  return !((role & OWNER) && counted > 0) && !((role & COUNTED) && owners > 0);
}

static int affinity_allows(const State *s, int64_t r, int role, int32_t from, int32_t to) {
  const Problem *p = s->p;
  int64_t base = p->domain_start[r];
  int64_t is_counted = (role & COUNTED) ? 1 : 0, is_owner = (role & OWNER) ? 1 : 0;
  if (is_counted && from >= 0 && from != to && s->n_counted[base + from] == 1 && s->n_owners[base + from] - is_owner > 0) return 0;
  if (!is_owner) return 1;
  if (to < 0) return 0;
  if (s->n_counted[base + to] - (from == to ? is_counted : 0) > 0) return 1;
  if (!is_counted) return 0;
  /* The first of its kind may be in any domain. */
  for (int64_t d = base; d < p->domain_start[r + 1]; d++)
    if (s->n_counted[d] - (d == base + from ? 1 : 0) > 0) return 0;
  return 1;
}

/* Whether the class and all required rules allow a replica on a host, if it leaves `from`. Resources are not checked. */
int state_allows(const State *s, int32_t class, int32_t from, int32_t host) {
  const Problem *p = s->p;
  if (!is_allowed(p, class, host)) return 0;
  for (int64_t k = p->role_start[class]; k < p->role_start[class + 1]; k++) {
    int64_t r = p->role_rule[k];
    int32_t to = p->domain_of[r * p->hosts + host], left = from < 0 ? -1 : p->domain_of[r * p->hosts + from];
    if (p->rule_kind[r] == RULE_SPREAD && !spread_allows(s, r, p->role[k], left, to)) return 0;
    if (p->rule_kind[r] == RULE_ANTI_AFFINITY && !anti_affinity_allows(s, r, p->role[k], left, to)) return 0;
    if (p->rule_kind[r] == RULE_AFFINITY && !affinity_allows(s, r, p->role[k], left, to)) return 0;
  }
  return 1;
}

/* Whether a replica may leave a host without breaking a required rule of the replicas that stay there. */
int state_may_leave(const State *s, int32_t class, int32_t from) {
  const Problem *p = s->p;
  for (int64_t k = p->role_start[class]; k < p->role_start[class + 1]; k++) {
    int64_t r = p->role_rule[k], base = p->domain_start[r];
    int32_t left = p->domain_of[r * p->hosts + from];
    if (left < 0 || !(p->role[k] & COUNTED)) continue;
    int64_t rest = s->n_counted[base + left] - 1, is_owner = (p->role[k] & OWNER) ? 1 : 0;
    if (p->rule_kind[r] == RULE_AFFINITY && rest == 0 && s->n_owners[base + left] - is_owner > 0) return 0;
    if (p->rule_kind[r] != RULE_SPREAD || !p->eligible[base + left] || p->rule_lacks_domains[r] || rest >= s->min_counted[r]) continue;
    for (int64_t d = base; d < p->domain_start[r + 1]; d++)
      if (d != base + left && s->n_owners[d] && s->n_counted[d] - rest > p->rule_max_skew[r]) return 0;
  }
  return 1;
}

static double delta_as_caller(const State *s, int64_t e, int32_t from, int32_t to) {
  const Problem *p = s->p;
  int64_t a = p->caller[e], b = p->callee[e], zones = p->zones, moved[2] = {0, 0}, zone[2] = {zone_at(p, from), zone_at(p, to)};
  if (from >= 0) moved[0] = same_host_delta(s, e, 0, from, -1);
  if (to >= 0) moved[1] = same_host_delta(s, e, 0, to, 1);
  double sum = 0;
  int is_same_zone = zone[0] == zone[1];
  for (int i = is_same_zone ? 1 : 0; i < 2; i++)
    if (zone[i] >= 0) {
      int64_t k = e * zones + zone[i];
      int64_t callers = s->in_zone[a * zones + zone[i]] + (is_same_zone ? 0 : i ? 1 : -1);
      int64_t same_host = s->same_host[k] + (is_same_zone ? moved[0] + moved[1] : moved[i]);
      sum += cost_from_zone(s, e, zone[i], callers, s->in_zone[b * zones + zone[i]], same_host, s->to_all[k], s->n_unzoned[b]) - s->zone_cost[k];
    }
  return sum;
}

static double delta_as_callee(const State *s, int64_t e, int32_t from, int32_t to) {
  const Problem *p = s->p;
  int64_t a = p->caller[e], b = p->callee[e], zones = p->zones, z1 = zone_at(p, from), z2 = zone_at(p, to);
  int64_t lost = from >= 0 ? same_host_delta(s, e, 1, from, -1) : 0, won = to >= 0 ? same_host_delta(s, e, 1, to, 1) : 0;
  double sum = 0;
  int64_t before = s->n_unzoned[b], after = before + (z2 >= 0 && !p->has_zone_label[z2]) - (z1 >= 0 && !p->has_zone_label[z1]);
  int has_zone_hints = p->routing[e] != ROUTE_ANY && !before && !after;
  for (int64_t z = 0; z < zones; z++) {
    int64_t callers = s->in_zone[a * zones + z], called = s->in_zone[b * zones + z], k = e * zones + z;
    if (!callers) continue;
    if (z != z1 && z != z2 && (z1 == z2 || (called && p->has_zone_label[z] && has_zone_hints))) continue;
    double to_all = s->to_all[k];
    if (z1 != z2) to_all += to_all_delta(s, e, z, z1, z2);
    called += (z == z2) - (z == z1);
    int64_t same_host = s->same_host[k] + (z == z1 ? lost : 0) + (z == z2 ? won : 0);
    sum += cost_from_zone(s, e, z, callers, called, same_host, to_all, after) - s->zone_cost[k];
  }
  return sum;
}

/* Change of the squares of a host's utilization, if a replica is added (1) or removed (-1). */
static double balance_delta(const State *s, int32_t class, int32_t host, int sign) {
  const Problem *p = s->p;
  double sum = 0;
  for (int64_t a = p->request_start[class]; a < p->request_start[class + 1]; a++) {
    int64_t k = (int64_t)host * p->resources + p->request_resource[a];
    double share = (double)p->request_amount[a] * p->inverse_capacity[k], used = 1 - (double)s->free[k] * p->inverse_capacity[k];
    sum += share * (sign * 2 * used + share);
  }
  return p->balance_price * sum;
}

/* Co-location: a cost for each pair of replicas of a workload on one host and in one zone, and of any two on one host. */
static double spread_delta(const State *s, int64_t w, int32_t from, int32_t to) {
  const Problem *p = s->p;
  double sum = 0;
  if (to >= 0) sum += p->host_penalty[w] * (2 * s->on_host[w * p->hosts + to] + 1) + p->crowding_price * (2 * s->n_on_host[to] + 1);
  if (from >= 0) sum -= p->host_penalty[w] * (2 * s->on_host[w * p->hosts + from] - 1) + p->crowding_price * (2 * s->n_on_host[from] - 1);
  int64_t z1 = zone_at(p, from), z2 = zone_at(p, to);
  if (z1 == z2) return sum;
  if (z2 >= 0) sum += p->zone_penalty[w] * (double)(2 * s->in_zone[w * p->zones + z2] + 1);
  if (z1 >= 0) sum -= p->zone_penalty[w] * (double)(2 * s->in_zone[w * p->zones + z1] - 1);
  return sum;
}

/* Change of the pairs of owner and counted replica in a domain, if it gains (1) or loses (-1) a replica with this role. */
static int64_t rule_pairs_delta(const State *s, int64_t domain, int role, int step) {
  int64_t counted = s->n_counted[domain], owners = s->n_owners[domain];
  return (owners + ((role & OWNER) ? step : 0)) * (counted + ((role & COUNTED) ? step : 0)) - owners * counted;
}

static double preference_delta(const State *s, int32_t class, int32_t from, int32_t to) {
  const Problem *p = s->p;
  double sum = 0;
  for (int64_t k = p->role_start[class]; k < p->role_start[class + 1]; k++) {
    int64_t r = p->role_rule[k];
    if (p->rule_kind[r] != RULE_PREFERENCE) continue;
    int32_t left = from < 0 ? -1 : p->domain_of[r * p->hosts + from], there = to < 0 ? -1 : p->domain_of[r * p->hosts + to];
    if (left == there) continue;
    int64_t pairs = 0;
    if (there >= 0) pairs += rule_pairs_delta(s, p->domain_start[r] + there, p->role[k], 1);
    if (left >= 0) pairs += rule_pairs_delta(s, p->domain_start[r] + left, p->role[k], -1);
    sum += p->rule_price[r] * (double)pairs;
  }
  return sum;
}

/* Change of balance, host prices, co-location and preferences. */
double state_other_delta(const State *s, int32_t class, int32_t from, int32_t to) {
  const Problem *p = s->p;
  double sum = spread_delta(s, p->workload_of[class], from, to);
  if (to >= 0) sum += balance_delta(s, class, to, 1) + p->host_price[to];
  if (from >= 0) sum += balance_delta(s, class, from, -1) - p->host_price[from];
  return has_rules(p, class) ? sum + preference_delta(s, class, from, to) : sum;
}

/* Change of calls and of workloads in one zone: equal for all hosts of a zone that have no replica of adjacent workloads. */
double state_network_delta(const State *s, int32_t class, int32_t from, int32_t to) {
  const Problem *p = s->p;
  int64_t w = p->workload_of[class];
  double sum = 0;
  for (int64_t k = s->adjacent_start[w]; k < s->adjacent_start[w + 1]; k++) {
    int64_t e = s->adjacent[k] >> 1;
    sum += s->adjacent[k] & 1 ? delta_as_callee(s, e, from, to) : delta_as_caller(s, e, from, to);
  }
  if (p->must_span_zones[w]) {
    int64_t z1 = zone_at(p, from), z2 = zone_at(p, to), all = p->total[w];
    if (z1 != z2) {
      if (z1 >= 0 && s->in_zone[w * p->zones + z1] == all) sum -= p->one_zone_price;
      if (z2 >= 0 && s->in_zone[w * p->zones + z2] + 1 == all) sum += p->one_zone_price;
    }
  }
  return sum;
}

double state_delta(const State *s, int32_t replica, int32_t to) {
  int32_t class = s->p->class_of[replica], from = s->host_of[replica];
  if (from == to) return 0;
  return state_network_delta(s, class, from, to) + state_other_delta(s, class, from, to);
}

static void update_rule_counts(State *s, int32_t class, int32_t host, int step) {
  const Problem *p = s->p;
  for (int64_t k = p->role_start[class]; k < p->role_start[class + 1]; k++) {
    int64_t r = p->role_rule[k], d = p->domain_start[r] + p->domain_of[r * p->hosts + host];
    if (p->domain_of[r * p->hosts + host] < 0) continue;
    if (p->role[k] & OWNER) s->n_owners[d] += step;
    if (!(p->role[k] & COUNTED)) continue;
    s->n_counted[d] += step;
    if (p->rule_kind[r] != RULE_SPREAD || !p->eligible[d] || p->rule_lacks_domains[r]) continue;
    if (step < 0 && s->n_counted[d] < s->min_counted[r]) s->min_counted[r] = s->n_counted[d];
    if (step > 0 && s->n_counted[d] - 1 == s->min_counted[r]) s->min_counted[r] = find_min_counted(s, r);
  }
}

/* Updates same_host and to_all; the counts of replicas must still be those before the move. */
static void update_edge_counts(State *s, int64_t w, int32_t from, int32_t to) {
  const Problem *p = s->p;
  int64_t zones = p->zones, z1 = zone_at(p, from), z2 = zone_at(p, to);
  for (int64_t k = s->adjacent_start[w]; k < s->adjacent_start[w + 1]; k++) {
    int64_t e = s->adjacent[k] >> 1;
    int as_callee = (int)(s->adjacent[k] & 1);
    if (from >= 0) s->same_host[e * zones + z1] += same_host_delta(s, e, as_callee, from, -1);
    if (to >= 0) s->same_host[e * zones + z2] += same_host_delta(s, e, as_callee, to, 1);
    if (as_callee && z1 != z2)
      for (int64_t z = 0; z < zones; z++) s->to_all[e * zones + z] += to_all_delta(s, e, z, z1, z2);
  }
}

static void update_edge_costs(State *s, int64_t w, int64_t z1, int64_t z2) {
  int64_t zones = s->p->zones;
  for (int64_t k = s->adjacent_start[w]; k < s->adjacent_start[w + 1]; k++) {
    int64_t e = s->adjacent[k] >> 1;
    int has_moved_callee = (s->adjacent[k] & 1) && z1 != z2;
    for (int64_t z = 0; z < zones; z++)
      if (has_moved_callee || z == z1 || z == z2) s->zone_cost[e * zones + z] = current_cost_from_zone(s, e, z);
  }
}

static void append(ReplicaList *list, int32_t replica) {
  if (list->length == list->capacity) {
    list->capacity = list->capacity ? list->capacity * 2 : 4;
    list->item = realloc(list->item, (size_t)list->capacity * sizeof(int32_t));
  }
  list->item[list->length++] = replica;
}

/* Adds a replica to a host (1), or removes it (-1). */
static void change_host(State *s, int32_t replica, int32_t host, int step) {
  const Problem *p = s->p;
  int32_t class = p->class_of[replica], zone = p->zone_of[host];
  int64_t w = p->workload_of[class];
  for (int64_t a = p->request_start[class]; a < p->request_start[class + 1]; a++)
    s->free[(int64_t)host * p->resources + p->request_resource[a]] -= step * p->request_amount[a];
  s->on_host[w * p->hosts + host] += step;
  s->n_on_host[host] += step;
  s->in_zone[w * p->zones + zone] += step;
  if (!p->has_zone_label[zone]) s->n_unzoned[w] += step;
  s->n_placed += step;
  update_rule_counts(s, class, host, step);
  ReplicaList *list = &s->replicas_on[host];
  if (step > 0) {
    s->list_index[replica] = list->length;
    append(list, replica);
  } else {
    int32_t last = list->item[--list->length];
    list->item[s->list_index[replica]] = last;
    s->list_index[last] = s->list_index[replica];
  }
}

/* Moves a replica, or takes it from its host (-1), without checks: see state_fits, state_allows, state_may_leave. */
void state_move(State *s, int32_t replica, int32_t to) {
  const Problem *p = s->p;
  int32_t from = s->host_of[replica];
  int64_t w = p->workload_of[p->class_of[replica]];
  if (from == to) return;
  update_edge_counts(s, w, from, to);
  if (from >= 0) change_host(s, replica, from, -1);
  if (to >= 0) change_host(s, replica, to, 1);
  s->host_of[replica] = to;
  update_edge_costs(s, w, zone_at(p, from), zone_at(p, to));
}

/* Total cost of the placement, with broken limits and workloads wholly in one zone. */
double state_cost(const State *s) {
  const Problem *p = s->p;
  double sum = 0;
  for (int64_t k = 0; k < p->edges * p->zones; k++) sum += s->zone_cost[k];
  for (int64_t k = 0; k < p->workloads * p->zones; k++)
    if (p->must_span_zones[k / p->zones] && s->in_zone[k] == p->total[k / p->zones]) sum += p->one_zone_price;
  for (int64_t w = 0; w < p->workloads; w++) {
    for (int64_t z = 0; z < p->zones; z++) sum += p->zone_penalty[w] * (double)(s->in_zone[w * p->zones + z] * s->in_zone[w * p->zones + z]);
    for (int64_t h = 0; p->host_penalty[w] > 0 && h < p->hosts; h++)
      sum += p->host_penalty[w] * s->on_host[w * p->hosts + h] * s->on_host[w * p->hosts + h];
  }
  for (int64_t h = 0; h < p->hosts; h++) sum += (p->crowding_price * s->n_on_host[h] + p->host_price[h]) * s->n_on_host[h];
  for (int64_t r = 0; r < p->rules; r++)
    for (int64_t d = p->domain_start[r]; p->rule_kind[r] == RULE_PREFERENCE && d < p->domain_start[r + 1]; d++)
      sum += p->rule_price[r] * (double)(s->n_owners[d] * s->n_counted[d]);
  for (int64_t k = 0; k < p->hosts * p->resources; k++) {
    double used = 1 - (double)s->free[k] * p->inverse_capacity[k];
    if (p->inverse_capacity[k] > 0) sum += p->balance_price * used * used;
  }
  return sum;
}
