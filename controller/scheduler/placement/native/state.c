#include "state.h"

#include <stdlib.h>
#include <string.h>

static inline double latency(const Problem *p, int64_t table, int64_t from, int64_t to) {
  return p->latency[(table * p->zones + from) * p->zones + to];
}
static inline int violates(const Problem *p, int64_t table, int64_t from, int64_t to) {
  return p->violates_limit[(table * p->zones + from) * p->zones + to];
}

/* Cost of one caller in a zone to one replica in another, when every replica answers alike. */
static inline double pair(const State *s, int64_t e, int64_t from, int64_t to) {
  const Problem *p = s->p;
  double price = s->pair_weight[e] * latency(p, p->table[e], from, to);
  return violates(p, p->table[e], from, to) ? price + p->limit_price : price;
}

/* Pairs of an edge within one host; by node, the calls that stay there without loading a replica above its share. */
static inline int64_t within(const Problem *p, int64_t e, int64_t callers, int64_t called) {
  if (p->routing[e] != ROUTE_NODE) return callers * called;
  int64_t wanted = callers * p->total[p->callee[e]], share = called * p->total[p->caller[e]];
  return wanted < share ? wanted : share;
}

/* Cost of all calls of an edge from one zone.
 *
 * Any replica answers: every pair counts. By zone or node: kube-proxy's rules, that is the caller's node (by node), then its
 * zone where one of the callee's replicas is, then all; no zone counts while a replica is on a node without one. A call that
 * would load a replica above its fair share costs as much as one that leaves the zone. `Endpoints` in cluster/services.py has the
 * same rule for callers one by one.
 */
static double zone_term(const State *s, int64_t e, int64_t z, int64_t callers, int64_t called, int64_t shared, double to_all,
                        int64_t unzoned) {
  if (!callers) return 0;
  const Problem *p = s->p;
  int64_t t = p->table[e], of_caller = p->total[p->caller[e]], of_callee = p->total[p->callee[e]];
  double near = latency(p, t, z, z), gain = near - p->local[t], share = s->pair_weight[e] * (double)of_callee;
  int by_zone = p->routing[e] != ROUTE_ANY && p->zoned[z] && called && !unzoned;
  if (!by_zone && p->routing[e] != ROUTE_NODE)
    return (double)callers * to_all - (double)shared * (s->pair_weight[e] * gain + (violates(p, t, z, z) ? p->limit_price : 0));
  double stay = p->routing[e] == ROUTE_NODE ? (double)shared / (double)of_callee : 0;
  if (!by_zone) return ((double)callers - stay) * to_all + stay * share * p->local[t];
  double price = (double)callers * share * near;
  price -= share * gain * (p->routing[e] == ROUTE_NODE ? stay : (double)shared / (double)called);
  int64_t excess = callers * of_callee - called * of_caller;
  if (excess > 0) price += p->load_price * share * s->mean_detour[t * p->zones + z] * (double)excess / (double)of_callee;
  return price;
}

static double *doubles(int64_t n) { return calloc((size_t)(n ? n : 1), sizeof(double)); }
static int64_t *longs(int64_t n) { return calloc((size_t)(n ? n : 1), sizeof(int64_t)); }
static int32_t *ints(int64_t n) { return calloc((size_t)(n ? n : 1), sizeof(int32_t)); }

static void index_edges(State *s) {
  const Problem *p = s->p;
  s->adjacent_start = longs(p->workloads + 1);
  s->adjacent = longs(p->edges * 2);
  s->member_start = longs(p->workloads + 1);
  s->member = ints(p->replicas);
  for (int64_t e = 0; e < p->edges; e++) s->adjacent_start[p->caller[e] + 1]++, s->adjacent_start[p->callee[e] + 1]++;
  for (int64_t i = 0; i < p->replicas; i++) s->member_start[p->workload_of[p->class_of[i]] + 1]++;
  for (int64_t w = 0; w < p->workloads; w++) {
    s->adjacent_start[w + 1] += s->adjacent_start[w];
    s->member_start[w + 1] += s->member_start[w];
  }
  int64_t *edge_end = longs(p->workloads), *member_end = longs(p->workloads);
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

static void price_edges(State *s) {
  const Problem *p = s->p;
  int64_t zones = p->zones, tables = p->tables ? p->tables : 1;
  s->pair_weight = doubles(p->edges);
  s->mean_detour = doubles(tables * zones);
  s->shared = longs(p->edges * zones);
  s->to_all = doubles(p->edges * zones);
  s->term = doubles(p->edges * zones);
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
      if (s->count[a * p->hosts + h] && s->count[b * p->hosts + h])
        s->shared[e * zones + p->zone_of[h]] += within(p, e, s->count[a * p->hosts + h], s->count[b * p->hosts + h]);
    for (int64_t z = 0; z < zones; z++) {
      for (int64_t y = 0; y < zones; y++)
        if (s->in_zone[b * zones + y]) s->to_all[e * zones + z] += (double)s->in_zone[b * zones + y] * pair(s, e, z, y);
      s->term[e * zones + z] = zone_term(s, e, z, s->in_zone[a * zones + z], s->in_zone[b * zones + z],
                                         s->shared[e * zones + z], s->to_all[e * zones + z], s->unzoned[b]);
    }
  }
}

static int64_t least_of(const State *s, int64_t rule) {
  const Problem *p = s->p;
  int64_t least = INT64_MAX;
  if (p->rule_short[rule]) return 0;
  for (int64_t d = p->domain_start[rule]; d < p->domain_start[rule + 1]; d++)
    if (p->eligible[d] && s->counted[d] < least) least = s->counted[d];
  return least == INT64_MAX ? 0 : least;
}

State *state_new(const Problem *p, uint64_t seed) {
  State *s = calloc(1, sizeof(State));
  s->p = p;
  s->random = seed * 0x9E3779B97F4A7C15ULL + 0x1234567ULL;
  if (!s->random) s->random = 1;
  s->at = ints(p->replicas);
  s->roster_index = ints(p->replicas);
  s->roster = calloc((size_t)(p->hosts ? p->hosts : 1), sizeof(Roster));
  s->free = longs(p->hosts * p->resources);
  memcpy(s->free, p->free, (size_t)(p->hosts * p->resources) * sizeof(int64_t));
  s->ask = longs(p->classes * p->resources);
  for (int64_t k = 0; k < p->classes; k++)
    for (int64_t a = p->ask_start[k]; a < p->ask_start[k + 1]; a++)
      s->ask[k * p->resources + p->ask_resource[a]] += p->ask_amount[a];
  s->count = ints(p->workloads * p->hosts);
  s->in_zone = longs(p->workloads * p->zones);
  s->unzoned = longs(p->workloads);
  s->crowd = ints(p->hosts);
  for (int64_t i = 0; i < p->replicas; i++) s->at[i] = -1;
  for (int64_t w = 0; w < p->workloads; w++)
    for (int64_t f = p->fixed_start[w]; f < p->fixed_start[w + 1]; f++) {
      s->count[w * p->hosts + p->fixed_host[f]]++;
      s->crowd[p->fixed_host[f]]++;
      s->in_zone[w * p->zones + p->zone_of[p->fixed_host[f]]]++;
      if (!p->zoned[p->zone_of[p->fixed_host[f]]]) s->unzoned[w]++;
    }
  index_edges(s);
  price_edges(s);
  int64_t domains = p->rules ? p->domain_start[p->rules] : 0;
  s->counted = longs(domains);
  s->owners = longs(domains);
  s->least = longs(p->rules);
  memcpy(s->counted, p->bound, (size_t)domains * sizeof(int64_t));
  memcpy(s->owners, p->owned, (size_t)domains * sizeof(int64_t));
  for (int64_t r = 0; r < p->rules; r++) s->least[r] = least_of(s, r);
  return s;
}

void state_free(State *s) {
  for (int64_t h = 0; h < s->p->hosts; h++) free(s->roster[h].item);
  void *all[] = {s->at, s->roster_index, s->roster, s->free, s->ask, s->count, s->in_zone, s->unzoned, s->shared, s->to_all, s->term, s->mean_detour,
                 s->pair_weight, s->adjacent_start, s->adjacent, s->member_start, s->member, s->counted, s->owners, s->least, s->crowd};
  for (unsigned i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
  free(s);
}

int state_fits(const State *s, int32_t class, int32_t host) {
  const Problem *p = s->p;
  const int64_t *free_ = s->free + (int64_t)host * p->resources;
  for (int64_t a = p->ask_start[class]; a < p->ask_start[class + 1]; a++)
    if (free_[p->ask_resource[a]] < p->ask_amount[a]) return 0;
  return 1;
}

/* topologySpreadConstraints: no more than `skew` above the least, now and, for those who stay, after one has left. */
static int spread_allows(const State *s, int64_t r, int role, int32_t from, int32_t to) {
  const Problem *p = s->p;
  int64_t base = p->domain_start[r], skew = p->rule_skew[r], least = s->least[r];
  int counted = role & COUNTED;
  if (!(role & OWNER)) return 1;
  if (to < 0) return 0;
  if (from == to) return 1;
  int64_t there = s->counted[base + to] + (counted ? 1 : 0);
  if (counted && from >= 0 && p->eligible[base + from] && !p->rule_short[r] && s->counted[base + from] - 1 < least) {
    least = s->counted[base + from] - 1;
    for (int64_t d = base; d < p->domain_start[r + 1]; d++)
      if (d != base + from && d != base + to && s->owners[d] && s->counted[d] - least > skew) return 0;
  }
  return there - least <= skew;
}

static int anti_affinity_allows(const State *s, int64_t r, int role, int32_t from, int32_t to) {
  if (to < 0) return 1;
  int64_t d = s->p->domain_start[r] + to, counted = s->counted[d], owners = s->owners[d];
  if (from == to) counted -= (role & COUNTED) ? 1 : 0, owners -= (role & OWNER) ? 1 : 0;
  return !((role & OWNER) && counted > 0) && !((role & COUNTED) && owners > 0);
}

static int affinity_allows(const State *s, int64_t r, int role, int32_t from, int32_t to) {
  const Problem *p = s->p;
  int64_t base = p->domain_start[r];
  int64_t self = (role & COUNTED) ? 1 : 0, mine = (role & OWNER) ? 1 : 0;
  if (self && from >= 0 && from != to && s->counted[base + from] == 1 && s->owners[base + from] - mine > 0) return 0;
  if (!mine) return 1;
  if (to < 0) return 0;
  if (s->counted[base + to] - (from == to ? self : 0) > 0) return 1;
  if (!self) return 0;
  for (int64_t d = base; d < p->domain_start[r + 1]; d++)
    if (s->counted[d] - (d == base + from ? 1 : 0) > 0) return 0; /* the first of its kind may begin anywhere */
  return 1;
}

int state_allows(const State *s, int32_t class, int32_t from, int32_t host) {
  const Problem *p = s->p;
  if (!allows(p, class, host)) return 0;
  for (int64_t k = p->role_start[class]; k < p->role_start[class + 1]; k++) {
    int64_t r = p->role_rule[k];
    int32_t to = p->domain_of[r * p->hosts + host], left = from < 0 ? -1 : p->domain_of[r * p->hosts + from];
    int open = 1;
    if (p->rule_kind[r] == RULE_SPREAD) open = spread_allows(s, r, p->role[k], left, to);
    if (p->rule_kind[r] == RULE_ANTI_AFFINITY) open = anti_affinity_allows(s, r, p->role[k], left, to);
    if (p->rule_kind[r] == RULE_AFFINITY) open = affinity_allows(s, r, p->role[k], left, to);
    if (!open) return 0;
  }
  return 1;
}

/* Whether a replica may leave a host for another, whatever that is, without breaking a rule for those who stay. */
int state_may_leave(const State *s, int32_t class, int32_t from) {
  const Problem *p = s->p;
  for (int64_t k = p->role_start[class]; k < p->role_start[class + 1]; k++) {
    int64_t r = p->role_rule[k], base = p->domain_start[r];
    int32_t left = p->domain_of[r * p->hosts + from];
    if (left < 0 || !(p->role[k] & COUNTED)) continue;
    int64_t least = s->counted[base + left] - 1, mine = (p->role[k] & OWNER) ? 1 : 0;
    if (p->rule_kind[r] == RULE_AFFINITY && least == 0 && s->owners[base + left] - mine > 0) return 0;
    if (p->rule_kind[r] != RULE_SPREAD || !p->eligible[base + left] || p->rule_short[r] || least >= s->least[r]) continue;
    for (int64_t d = base; d < p->domain_start[r + 1]; d++)
      if (d != base + left && s->owners[d] && s->counted[d] - least > p->rule_skew[r]) return 0;
  }
  return 1;
}

static double delta_as_caller(const State *s, int64_t e, int32_t from, int32_t to) {
  const Problem *p = s->p;
  int64_t a = p->caller[e], b = p->callee[e], hosts = p->hosts, zones = p->zones, moved[2] = {0, 0}, zone[2] = {-1, -1};
  int32_t host[2] = {from, to};
  for (int i = 0; i < 2; i++)
    if (host[i] >= 0) {
      int64_t x = s->count[a * hosts + host[i]], y = s->count[b * hosts + host[i]];
      if (y) moved[i] = within(p, e, x + (i ? 1 : -1), y) - within(p, e, x, y);
      zone[i] = p->zone_of[host[i]];
    }
  double sum = 0;
  int one = zone[0] == zone[1];
  for (int i = one ? 1 : 0; i < 2; i++)
    if (zone[i] >= 0) {
      int64_t k = e * zones + zone[i];
      int64_t callers = s->in_zone[a * zones + zone[i]] + (one ? 0 : i ? 1 : -1);
      int64_t shared = s->shared[k] + (one ? moved[0] + moved[1] : moved[i]);
      sum += zone_term(s, e, zone[i], callers, s->in_zone[b * zones + zone[i]], shared, s->to_all[k], s->unzoned[b]) - s->term[k];
    }
  return sum;
}

static double delta_as_callee(const State *s, int64_t e, int32_t from, int32_t to) {
  const Problem *p = s->p;
  int64_t a = p->caller[e], b = p->callee[e], hosts = p->hosts, zones = p->zones;
  int64_t z1 = from >= 0 ? p->zone_of[from] : -1, z2 = to >= 0 ? p->zone_of[to] : -1;
  int64_t lost = 0, won = 0;
  if (from >= 0) {
    int64_t x = s->count[a * hosts + from], y = s->count[b * hosts + from];
    if (x) lost = within(p, e, x, y - 1) - within(p, e, x, y);
  }
  if (to >= 0) {
    int64_t x = s->count[a * hosts + to], y = s->count[b * hosts + to];
    if (x) won = within(p, e, x, y + 1) - within(p, e, x, y);
  }
  double sum = 0;
  int64_t before = s->unzoned[b], after = before + (z2 >= 0 && !p->zoned[z2]) - (z1 >= 0 && !p->zoned[z1]);
  int hinted = p->routing[e] != ROUTE_ANY && !before && !after;
  for (int64_t z = 0; z < zones; z++) {
    int64_t callers = s->in_zone[a * zones + z], called = s->in_zone[b * zones + z], k = e * zones + z;
    if (!callers) continue;
    if (z != z1 && z != z2 && (z1 == z2 || (called && p->zoned[z] && hinted))) continue;
    double to_all = s->to_all[k];
    if (z1 != z2) to_all += (z2 >= 0 ? pair(s, e, z, z2) : 0) - (z1 >= 0 ? pair(s, e, z, z1) : 0);
    called += (z == z2) - (z == z1);
    int64_t shared = s->shared[k] + (z == z1 ? lost : 0) + (z == z2 ? won : 0);
    sum += zone_term(s, e, z, callers, called, shared, to_all, after) - s->term[k];
  }
  return sum;
}

static double balance_delta(const State *s, int32_t class, int32_t host, int sign) {
  const Problem *p = s->p;
  double sum = 0;
  for (int64_t a = p->ask_start[class]; a < p->ask_start[class + 1]; a++) {
    int64_t k = (int64_t)host * p->resources + p->ask_resource[a];
    double part = (double)p->ask_amount[a] * p->inverse[k], used = 1 - (double)s->free[k] * p->inverse[k];
    sum += part * (sign * 2 * used + part);
  }
  return p->balance_price * sum;
}

/* Co-location: a cost for every pair on one host, in one zone. */
static double spread_delta(const State *s, int64_t w, int32_t from, int32_t to) {
  const Problem *p = s->p;
  double sum = 0;
  if (to >= 0) sum += p->host_penalty[w] * (2 * s->count[w * p->hosts + to] + 1) + p->crowd_price * (2 * s->crowd[to] + 1);
  if (from >= 0) sum -= p->host_penalty[w] * (2 * s->count[w * p->hosts + from] - 1) + p->crowd_price * (2 * s->crowd[from] - 1);
  int64_t z1 = from >= 0 ? p->zone_of[from] : -1, z2 = to >= 0 ? p->zone_of[to] : -1;
  if (z1 == z2) return sum;
  if (z2 >= 0) sum += p->zone_penalty[w] * (double)(2 * s->in_zone[w * p->zones + z2] + 1);
  if (z1 >= 0) sum -= p->zone_penalty[w] * (double)(2 * s->in_zone[w * p->zones + z1] - 1);
  return sum;
}

static double preference_delta(const State *s, int32_t class, int32_t from, int32_t to) {
  const Problem *p = s->p;
  double sum = 0;
  for (int64_t k = p->role_start[class]; k < p->role_start[class + 1]; k++) {
    int64_t r = p->role_rule[k];
    if (p->rule_kind[r] != RULE_PREFERENCE) continue;
    int32_t left = from < 0 ? -1 : p->domain_of[r * p->hosts + from], there = to < 0 ? -1 : p->domain_of[r * p->hosts + to];
    if (left == there) continue;
    int64_t counted = (p->role[k] & COUNTED) ? 1 : 0, owner = (p->role[k] & OWNER) ? 1 : 0, base = p->domain_start[r];
    int64_t pairs = 0;
    if (there >= 0) pairs += (s->owners[base + there] + owner) * (s->counted[base + there] + counted) - s->owners[base + there] * s->counted[base + there];
    if (left >= 0) pairs += (s->owners[base + left] - owner) * (s->counted[base + left] - counted) - s->owners[base + left] * s->counted[base + left];
    sum += p->rule_price[r] * (double)pairs;
  }
  return sum;
}

/* Cost change of a move except for the network: balance, co-location, preferences. */
double state_other_delta(const State *s, int32_t class, int32_t from, int32_t to) {
  const Problem *p = s->p;
  double sum = spread_delta(s, p->workload_of[class], from, to);
  if (to >= 0) sum += balance_delta(s, class, to, 1) + p->host_price[to];
  if (from >= 0) sum += balance_delta(s, class, from, -1) - p->host_price[from];
  return p->role_start[class] < p->role_start[class + 1] ? sum + preference_delta(s, class, from, to) : sum;
}

/* Cost change of the network and of zones: the same for all hosts of a zone without replicas of neighbours. */
double state_network(const State *s, int32_t class, int32_t from, int32_t to) {
  const Problem *p = s->p;
  int64_t w = p->workload_of[class];
  double sum = 0;
  for (int64_t k = s->adjacent_start[w]; k < s->adjacent_start[w + 1]; k++) {
    int64_t e = s->adjacent[k] >> 1;
    sum += s->adjacent[k] & 1 ? delta_as_callee(s, e, from, to) : delta_as_caller(s, e, from, to);
  }
  if (p->must_span_zones[w]) {
    int64_t z1 = from >= 0 ? p->zone_of[from] : -1, z2 = to >= 0 ? p->zone_of[to] : -1, all = p->total[w];
    if (z1 != z2) {
      if (z1 >= 0 && s->in_zone[w * p->zones + z1] == all) sum -= p->one_zone_price;
      if (z2 >= 0 && s->in_zone[w * p->zones + z2] + 1 == all) sum += p->one_zone_price;
    }
  }
  return sum;
}

double state_delta(const State *s, int32_t replica, int32_t to) {
  int32_t class = s->p->class_of[replica], from = s->at[replica];
  if (from == to) return 0;
  return state_network(s, class, from, to) + state_other_delta(s, class, from, to);
}

static void count_rules(State *s, int32_t class, int32_t from, int32_t to) {
  const Problem *p = s->p;
  for (int64_t k = p->role_start[class]; k < p->role_start[class + 1]; k++) {
    int64_t r = p->role_rule[k], base = p->domain_start[r];
    int32_t host[2] = {from, to};
    for (int i = 0; i < 2; i++) {
      int32_t d = host[i] < 0 ? -1 : p->domain_of[r * p->hosts + host[i]];
      if (d < 0) continue;
      if (p->role[k] & OWNER) s->owners[base + d] += i ? 1 : -1;
      if (!(p->role[k] & COUNTED)) continue;
      s->counted[base + d] += i ? 1 : -1;
      if (p->rule_kind[r] != RULE_SPREAD || !p->eligible[base + d] || p->rule_short[r]) continue;
      if (!i && s->counted[base + d] < s->least[r]) s->least[r] = s->counted[base + d];
      if (i && s->counted[base + d] - 1 == s->least[r]) s->least[r] = least_of(s, r);
    }
  }
}

static void count_edges(State *s, int64_t w, int32_t from, int32_t to) {
  const Problem *p = s->p;
  int64_t hosts = p->hosts, zones = p->zones;
  int64_t z1 = from >= 0 ? p->zone_of[from] : -1, z2 = to >= 0 ? p->zone_of[to] : -1;
  for (int64_t k = s->adjacent_start[w]; k < s->adjacent_start[w + 1]; k++) {
    int64_t e = s->adjacent[k] >> 1, a = p->caller[e], b = p->callee[e];
    int as_callee = (int)(s->adjacent[k] & 1);
    int32_t host[2] = {from, to};
    for (int i = 0; i < 2; i++)
      if (host[i] >= 0) { /* counts are those before the move */
        int64_t x = s->count[a * hosts + host[i]], y = s->count[b * hosts + host[i]], step = i ? 1 : -1;
        int64_t after = as_callee ? within(p, e, x, y + step) : within(p, e, x + step, y);
        s->shared[e * zones + p->zone_of[host[i]]] += after - within(p, e, x, y);
      }
    if (as_callee && z1 != z2)
      for (int64_t z = 0; z < zones; z++)
        s->to_all[e * zones + z] += (z2 >= 0 ? pair(s, e, z, z2) : 0) - (z1 >= 0 ? pair(s, e, z, z1) : 0);
  }
}

static void reprice(State *s, int64_t w, int64_t z1, int64_t z2) {
  const Problem *p = s->p;
  int64_t zones = p->zones;
  for (int64_t k = s->adjacent_start[w]; k < s->adjacent_start[w + 1]; k++) {
    int64_t e = s->adjacent[k] >> 1, a = p->caller[e], b = p->callee[e];
    int everywhere = (s->adjacent[k] & 1) && z1 != z2;
    for (int64_t z = 0; z < zones; z++)
      if (everywhere || z == z1 || z == z2)
        s->term[e * zones + z] = zone_term(s, e, z, s->in_zone[a * zones + z], s->in_zone[b * zones + z],
                                           s->shared[e * zones + z], s->to_all[e * zones + z], s->unzoned[b]);
  }
}

static void add_to_host(State *s, int32_t replica, int32_t host) {
  Roster *r = &s->roster[host];
  if (r->length == r->capacity) {
    r->capacity = r->capacity ? r->capacity * 2 : 4;
    r->item = realloc(r->item, (size_t)r->capacity * sizeof(int32_t));
  }
  s->roster_index[replica] = r->length;
  r->item[r->length++] = replica;
}

static void remove_from_host(State *s, int32_t replica, int32_t host) {
  Roster *r = &s->roster[host];
  int32_t last = r->item[--r->length];
  r->item[s->roster_index[replica]] = last;
  s->roster_index[last] = s->roster_index[replica];
}

/* Moves a replica without checks; call state_fits and state_allows first. */
void state_move(State *s, int32_t replica, int32_t to) {
  const Problem *p = s->p;
  int32_t class = p->class_of[replica], from = s->at[replica];
  int64_t w = p->workload_of[class];
  if (from == to) return;
  count_edges(s, w, from, to);
  int32_t host[2] = {from, to};
  for (int i = 0; i < 2; i++)
    if (host[i] >= 0) {
      int step = i ? 1 : -1;
      for (int64_t a = p->ask_start[class]; a < p->ask_start[class + 1]; a++)
        s->free[(int64_t)host[i] * p->resources + p->ask_resource[a]] -= step * p->ask_amount[a];
      s->count[w * p->hosts + host[i]] += step;
      s->crowd[host[i]] += step;
      s->in_zone[w * p->zones + p->zone_of[host[i]]] += step;
      if (!p->zoned[p->zone_of[host[i]]]) s->unzoned[w] += step;
      s->placed += step;
      if (i) add_to_host(s, replica, to);
      else remove_from_host(s, replica, from);
    }
  s->at[replica] = to;
  count_rules(s, class, from, to);
  reprice(s, w, from >= 0 ? p->zone_of[from] : -1, to >= 0 ? p->zone_of[to] : -1);
}

/* Total cost of the placement, broken limits and workloads wholly in one zone included. */
double state_cost(const State *s) {
  const Problem *p = s->p;
  double sum = 0;
  for (int64_t k = 0; k < p->edges * p->zones; k++) sum += s->term[k];
  for (int64_t k = 0; k < p->workloads * p->zones; k++)
    if (p->must_span_zones[k / p->zones] && s->in_zone[k] == p->total[k / p->zones]) sum += p->one_zone_price;
  for (int64_t w = 0; w < p->workloads; w++) {
    for (int64_t z = 0; z < p->zones; z++) sum += p->zone_penalty[w] * (double)(s->in_zone[w * p->zones + z] * s->in_zone[w * p->zones + z]);
    for (int64_t h = 0; p->host_penalty[w] > 0 && h < p->hosts; h++)
      sum += p->host_penalty[w] * s->count[w * p->hosts + h] * s->count[w * p->hosts + h];
  }
  for (int64_t h = 0; h < p->hosts; h++) sum += (p->crowd_price * s->crowd[h] + p->host_price[h]) * s->crowd[h];
  for (int64_t r = 0; r < p->rules; r++)
    for (int64_t d = p->domain_start[r]; p->rule_kind[r] == RULE_PREFERENCE && d < p->domain_start[r + 1]; d++)
      sum += p->rule_price[r] * (double)(s->owners[d] * s->counted[d]);
  for (int64_t k = 0; k < p->hosts * p->resources; k++) {
    double used = 1 - (double)s->free[k] * p->inverse[k];
    if (p->inverse[k] > 0) sum += p->balance_price * used * used;
  }
  return sum;
}
