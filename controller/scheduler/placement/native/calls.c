/* The cost of calls between workloads, and its change by a move. */
#include "state.h"

static inline double call_cost(const Problem *problem, int64_t table, int64_t from, int64_t to) {
  return problem->cost_between_hosts[(table * problem->zones + from) * problem->zones + to];
}
static inline int violates_limit(const Problem *problem, int64_t table, int64_t from, int64_t to) {
  return problem->violates_limit[(table * problem->zones + from) * problem->zones + to];
}

/* Cost of one caller's calls from a zone to one replica in another: its equal share of the caller's calls. */
static inline double pair_cost(const Problem *problem, int64_t edge, int64_t from, int64_t to) {
  double cost = problem->pair_weight[edge] * call_cost(problem, problem->table[edge], from, to);
  return violates_limit(problem, problem->table[edge], from, to) ? cost + problem->limit_price : cost;
}

/* Change of `cost_to_all` in a zone if a replica of the callee moves between two zones. */
static inline double cost_to_all_delta(const Problem *problem, int64_t edge, int64_t zone, int64_t from, int64_t to) {
  return (to >= 0 ? pair_cost(problem, edge, zone, to) : 0) - (from >= 0 ? pair_cost(problem, edge, zone, from) : 0);
}

/* Calls that stay on a host; the unit is the calls of one caller / number of the callee's replicas.
 * ROUTE_ANY, ROUTE_ZONE: pairs of a caller and a replica on the host. ROUTE_NODE: calls made there, at most its replicas' fair share. */
static inline int64_t count_same_host_calls(const Problem *problem, int64_t edge, int64_t callers, int64_t replicas) {
  if (problem->routing[edge] != ROUTE_NODE) return callers * replicas;
  int64_t made = callers * problem->replica_count[problem->callee[edge]];
  int64_t fair_share = replicas * problem->replica_count[problem->caller[edge]];
  return made < fair_share ? made : fair_share;
}

/* Change of count_same_host_calls if a host gains (change 1) or loses (-1) a replica of the callee or the caller. */
static inline int64_t same_host_delta(const State *state, EdgeEnd end, int32_t host, int change) {
  const Problem *problem = state->problem;
  int64_t callers = state->n_on_host[problem->caller[end.edge] * problem->hosts + host];
  int64_t replicas = state->n_on_host[problem->callee[end.edge] * problem->hosts + host];
  if (!(end.is_callee ? callers : replicas)) return 0;
  int64_t before = count_same_host_calls(problem, end.edge, callers, replicas);
  *(end.is_callee ? &replicas : &callers) += change;
  return count_same_host_calls(problem, end.edge, callers, replicas) - before;
}

/* The part of a placement that decides the cost of an edge's calls from one zone. */
typedef struct {
  int64_t callers, replicas; /* replicas of the caller and of the callee in the zone */
  int64_t same_host_calls;
  int64_t n_unzoned; /* replicas of the callee on nodes without a zone label */
  double cost_to_all;
} ZoneCalls;

static inline ZoneCalls calls_from_zone(const State *state, int64_t edge, int64_t zone) {
  const Problem *problem = state->problem;
  int64_t callee = problem->callee[edge];
  return (ZoneCalls){
      .callers = state->n_in_zone[problem->caller[edge] * problem->zones + zone],
      .replicas = state->n_in_zone[callee * problem->zones + zone],
      .same_host_calls = state->same_host_calls[edge * problem->zones + zone],
      .n_unzoned = state->n_unzoned[callee],
      .cost_to_all = state->cost_to_all[edge * problem->zones + zone],
  };
}

/* Cost of an edge's calls from one zone, by kube-proxy's rules.
 *
 * ROUTE_ANY: any replica answers, so every pair counts. ROUTE_ZONE: a replica in the caller's zone answers, else any. ROUTE_NODE: a
 * replica on the caller's node answers, else as ROUTE_ZONE. kube-proxy ignores zones while a replica is on a node without a zone
 * label. If calls stay in the zone, calls above a replica's fair share cost the mean extra cost of
 * a call to another zone (`mean_detour`). `Endpoints` in
 * controller/cluster/services.py has the same rules for a single caller. */
static inline double cost_from_zone(const Problem *problem, int64_t edge, int64_t zone, const ZoneCalls *calls) {
  if (!calls->callers) return 0;
  int64_t table = problem->table[edge], all_callers = problem->replica_count[problem->caller[edge]];
  int64_t all_replicas = problem->replica_count[problem->callee[edge]];
  double callers = (double)calls->callers, same_host_calls = (double)calls->same_host_calls;
  double in_zone = call_cost(problem, table, zone, zone), host_saving = in_zone - problem->cost_within_host[table];
  double caller_weight = problem->pair_weight[edge] * (double)all_replicas;
  int is_by_node = problem->routing[edge] == ROUTE_NODE;
  int is_by_zone = problem->routing[edge] != ROUTE_ANY && problem->has_zone_label[zone] && calls->replicas && !calls->n_unzoned;
  if (!is_by_zone && !is_by_node) {
    double limit_price = violates_limit(problem, table, zone, zone) ? problem->limit_price : 0;
    return callers * calls->cost_to_all - same_host_calls * (problem->pair_weight[edge] * host_saving + limit_price);
  }
  double staying = is_by_node ? same_host_calls / (double)all_replicas : 0;
  if (!is_by_zone) return (callers - staying) * calls->cost_to_all + staying * caller_weight * problem->cost_within_host[table];
  double cost = callers * caller_weight * in_zone;
  cost -= caller_weight * host_saving * (is_by_node ? staying : same_host_calls / (double)calls->replicas);
  int64_t excess = calls->callers * all_replicas - calls->replicas * all_callers;
  double detour = problem->mean_detour[table * problem->zones + zone];
  if (excess > 0) cost += problem->overload_price * caller_weight * detour * (double)excess / (double)all_replicas;
  return cost;
}

static double current_cost_from_zone(const State *state, int64_t edge, int64_t zone) {
  ZoneCalls calls = calls_from_zone(state, edge, zone);
  return cost_from_zone(state->problem, edge, zone, &calls);
}

/* Initializes the arrays of edges, by the counts of replicas. */
void calls_init(State *state) {
  const Problem *problem = state->problem;
  int64_t zones = problem->zones, hosts = problem->hosts;
  state->same_host_calls = allocate(problem->edges * zones, sizeof(int64_t));
  state->cost_to_all = allocate(problem->edges * zones, sizeof(double));
  state->zone_cost = allocate(problem->edges * zones, sizeof(double));
  for (int64_t edge = 0; edge < problem->edges; edge++) {
    int64_t caller = problem->caller[edge], callee = problem->callee[edge];
    for (int64_t host = 0; host < hosts; host++) {
      int64_t callers = state->n_on_host[caller * hosts + host], replicas = state->n_on_host[callee * hosts + host];
      if (callers && replicas)
        state->same_host_calls[edge * zones + problem->zone_of[host]] += count_same_host_calls(problem, edge, callers, replicas);
    }
    for (int64_t zone = 0; zone < zones; zone++) {
      for (int64_t other = 0; other < zones; other++) {
        int64_t replicas = state->n_in_zone[callee * zones + other];
        if (replicas) state->cost_to_all[edge * zones + zone] += (double)replicas * pair_cost(problem, edge, zone, other);
      }
      state->zone_cost[edge * zones + zone] = current_cost_from_zone(state, edge, zone);
    }
  }
}

/* Change of the cost of an edge's calls if a replica at one end moves: of calls from two zones if it is a caller, from all zones with
 * callers if it is a callee. */
static double edge_delta(const State *state, EdgeEnd end, int32_t from, int32_t to) {
  const Problem *problem = state->problem;
  int64_t zone_from = zone_at(problem, from), zone_to = zone_at(problem, to);
  int64_t lost = from >= 0 ? same_host_delta(state, end, from, -1) : 0;
  int64_t gained = to >= 0 ? same_host_delta(state, end, to, 1) : 0;
  int64_t before = state->n_unzoned[problem->callee[end.edge]], after = before;
  if (end.is_callee && zone_to >= 0) after += !problem->has_zone_label[zone_to];
  if (end.is_callee && zone_from >= 0) after -= !problem->has_zone_label[zone_from];
  int routes_by_zone = problem->routing[end.edge] != ROUTE_ANY && !before && !after;
  double sum = 0;
  for (int64_t zone = 0; zone < problem->zones; zone++) {
    int is_moved_zone = zone == zone_from || zone == zone_to;
    if (!is_moved_zone && (!end.is_callee || zone_from == zone_to)) continue;
    ZoneCalls calls = calls_from_zone(state, end.edge, zone);
    int64_t *replicas = end.is_callee ? &calls.replicas : &calls.callers;
    if (end.is_callee && !calls.callers) continue;
    /* A zone with its own replicas does not call other zones, so a move elsewhere does not change its cost. */
    if (!is_moved_zone && calls.replicas && problem->has_zone_label[zone] && routes_by_zone) continue;
    if (end.is_callee && zone_from != zone_to) calls.cost_to_all += cost_to_all_delta(problem, end.edge, zone, zone_from, zone_to);
    *replicas += (zone == zone_to) - (zone == zone_from);
    calls.same_host_calls += (zone == zone_from ? lost : 0) + (zone == zone_to ? gained : 0);
    calls.n_unzoned = after;
    sum += cost_from_zone(problem, end.edge, zone, &calls) - state->zone_cost[end.edge * problem->zones + zone];
  }
  return sum;
}

/* Change of the cost of calls if a replica of a workload moves. */
double calls_delta(const State *state, int64_t workload, int32_t from, int32_t to) {
  const Problem *problem = state->problem;
  double sum = 0;
  for (int64_t entry = problem->edge_end_start[workload]; entry < problem->edge_end_start[workload + 1]; entry++)
    sum += edge_delta(state, problem->edge_end[entry], from, to);
  return sum;
}

/* Updates same_host_calls and cost_to_all for a move. The counts of replicas must still be those before the move. */
void calls_update_counts(State *state, int64_t workload, int32_t from, int32_t to) {
  const Problem *problem = state->problem;
  int64_t zones = problem->zones, zone_from = zone_at(problem, from), zone_to = zone_at(problem, to);
  for (int64_t entry = problem->edge_end_start[workload]; entry < problem->edge_end_start[workload + 1]; entry++) {
    EdgeEnd end = problem->edge_end[entry];
    if (from >= 0) state->same_host_calls[end.edge * zones + zone_from] += same_host_delta(state, end, from, -1);
    if (to >= 0) state->same_host_calls[end.edge * zones + zone_to] += same_host_delta(state, end, to, 1);
    if (end.is_callee && zone_from != zone_to)
      for (int64_t zone = 0; zone < zones; zone++)
        state->cost_to_all[end.edge * zones + zone] += cost_to_all_delta(problem, end.edge, zone, zone_from, zone_to);
  }
}

/* Updates zone_cost after a move between two zones; all counts must be those after the move. */
void calls_update_costs(State *state, int64_t workload, int64_t zone_from, int64_t zone_to) {
  const Problem *problem = state->problem;
  int64_t zones = problem->zones;
  for (int64_t entry = problem->edge_end_start[workload]; entry < problem->edge_end_start[workload + 1]; entry++) {
    EdgeEnd end = problem->edge_end[entry];
    int affects_all_zones = end.is_callee && zone_from != zone_to;
    for (int64_t zone = 0; zone < zones; zone++)
      if (affects_all_zones || zone == zone_from || zone == zone_to)
        state->zone_cost[end.edge * zones + zone] = current_cost_from_zone(state, end.edge, zone);
  }
}
