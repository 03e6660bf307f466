#include "state.h"

#include <string.h>

/* Counts a replica of a workload that a host gains (1) or loses (-1). */
static void count_replica(State *state, int64_t workload, int32_t host, int step) {
  const Problem *problem = state->problem;
  int32_t zone = problem->zone_of[host];
  state->n_on_host[workload * problem->hosts + host] += step;
  state->n_all_on_host[host] += step;
  state->n_in_zone[workload * problem->zones + zone] += step;
  if (!problem->has_zone_label[zone]) state->n_unzoned[workload] += step;
}

State *state_new(const Problem *problem, uint64_t seed) {
  State *state = allocate(1, sizeof(State));
  state->problem = problem;
  state->random_state = seed * 0x9E3779B97F4A7C15ULL + 0x1234567ULL;
  if (!state->random_state) state->random_state = 1;
  state->host_of = allocate(problem->replicas, sizeof(int32_t));
  for (int64_t replica = 0; replica < problem->replicas; replica++) state->host_of[replica] = -1;
  state->list_index = allocate(problem->replicas, sizeof(int32_t));
  state->replicas_on = allocate(problem->hosts, sizeof(ReplicaList));
  state->free = allocate(problem->hosts * problem->resources, sizeof(int64_t));
  memcpy(state->free, problem->free, (size_t)(problem->hosts * problem->resources) * sizeof(int64_t));
  state->n_on_host = allocate(problem->workloads * problem->hosts, sizeof(int32_t));
  state->n_in_zone = allocate(problem->workloads * problem->zones, sizeof(int64_t));
  state->n_unzoned = allocate(problem->workloads, sizeof(int64_t));
  state->n_all_on_host = allocate(problem->hosts, sizeof(int32_t));
  for (int64_t workload = 0; workload < problem->workloads; workload++)
    for (int64_t fixed = problem->fixed_start[workload]; fixed < problem->fixed_start[workload + 1]; fixed++)
      count_replica(state, workload, problem->fixed_host[fixed], 1);
  calls_init(state);
  rules_init(state);
  return state;
}

void state_free(State *state) {
  for (int64_t host = 0; host < state->problem->hosts; host++) free(state->replicas_on[host].item);
  void *arrays[] = {state->host_of, state->replicas_on, state->list_index, state->free, state->n_on_host, state->n_in_zone,
                    state->n_unzoned, state->n_all_on_host, state->same_host_calls, state->cost_to_all, state->zone_cost,
                    state->n_counted, state->n_owners, state->min_counted};
  for (unsigned index = 0; index < sizeof arrays / sizeof *arrays; index++) free(arrays[index]);
  free(state);
}

/* Change of the price of a host's utilization, which grows with its square, if a replica is added (1) or removed (-1). */
static double balance_delta(const State *state, int32_t class, int32_t host, int step) {
  const Problem *problem = state->problem;
  const int64_t *requests = requests_of(problem, class), *free = state->free + (int64_t)host * problem->resources;
  const double *inverse_capacity = problem->inverse_capacity + (int64_t)host * problem->resources;
  double sum = 0;
  for (int64_t resource = 0; resource < problem->resources; resource++) {
    double share = (double)requests[resource] * inverse_capacity[resource];
    double used = 1 - (double)free[resource] * inverse_capacity[resource];
    sum += share * (step * 2 * used + share);
  }
  return problem->balance_price * sum;
}

/* Change of the prices for replicas of a workload on one host or in one zone, and of any workloads on one host (crowding).
   Prices grow with the square of the number of replicas: (n + 1)^2 - n^2 = 2 n + 1. */
static double colocation_delta(const State *state, int64_t workload, int32_t from, int32_t to) {
  const Problem *problem = state->problem;
  const int32_t *on_host = state->n_on_host + workload * problem->hosts, *all_on_host = state->n_all_on_host;
  const int64_t *in_zone = state->n_in_zone + workload * problem->zones;
  double host_price = problem->host_colocation_price[workload], zone_price = problem->zone_colocation_price[workload], sum = 0;
  if (to >= 0) sum += host_price * (2 * on_host[to] + 1) + problem->crowding_price * (2 * all_on_host[to] + 1);
  if (from >= 0) sum -= host_price * (2 * on_host[from] - 1) + problem->crowding_price * (2 * all_on_host[from] - 1);
  int64_t zone_from = zone_at(problem, from), zone_to = zone_at(problem, to);
  if (zone_from == zone_to) return sum;
  if (zone_to >= 0) sum += zone_price * (double)(2 * in_zone[zone_to] + 1);
  if (zone_from >= 0) sum -= zone_price * (double)(2 * in_zone[zone_from] - 1);
  return sum;
}

/* Change of utilization, host prices, co-location and preferences. */
double state_other_delta(const State *state, int32_t class, int32_t from, int32_t to) {
  const Problem *problem = state->problem;
  double sum = colocation_delta(state, problem->workload_of[class], from, to);
  if (to >= 0) sum += balance_delta(state, class, to, 1) + problem->host_price[to];
  if (from >= 0) sum += balance_delta(state, class, from, -1) - problem->host_price[from];
  return has_rules(problem, class) ? sum + rules_delta(state, class, from, to) : sum;
}

/* Change of calls and of workloads wholly in one zone; equal for all hosts of a zone that have no replicas of adjacent workloads. */
double state_network_delta(const State *state, int32_t class, int32_t from, int32_t to) {
  const Problem *problem = state->problem;
  int64_t workload = problem->workload_of[class], all = problem->replica_count[workload];
  const int64_t *in_zone = state->n_in_zone + workload * problem->zones;
  int64_t zone_from = zone_at(problem, from), zone_to = zone_at(problem, to);
  double sum = calls_delta(state, workload, from, to);
  if (!problem->must_span_zones[workload] || zone_from == zone_to) return sum;
  if (zone_from >= 0 && in_zone[zone_from] == all) sum -= problem->one_zone_price;
  if (zone_to >= 0 && in_zone[zone_to] + 1 == all) sum += problem->one_zone_price;
  return sum;
}

double state_delta(const State *state, int32_t replica, int32_t to) {
  int32_t class = state->problem->class_of[replica], from = state->host_of[replica];
  if (from == to) return 0;
  return state_network_delta(state, class, from, to) + state_other_delta(state, class, from, to);
}

static void list_append(ReplicaList *list, int32_t replica) {
  if (list->length == list->capacity) {
    list->capacity = list->capacity ? list->capacity * 2 : 4;
    list->item = require_memory(realloc(list->item, (size_t)list->capacity * sizeof(int32_t)));
  }
  list->item[list->length++] = replica;
}

/* Adds a replica to a host (1), or removes it (-1). */
static void change_host(State *state, int32_t replica, int32_t host, int step) {
  const Problem *problem = state->problem;
  int32_t class = problem->class_of[replica];
  for (int64_t resource = 0; resource < problem->resources; resource++)
    state->free[(int64_t)host * problem->resources + resource] -= step * requests_of(problem, class)[resource];
  count_replica(state, problem->workload_of[class], host, step);
  state->n_placed += step;
  if (has_rules(problem, class)) rules_update_counts(state, class, host, step);
  ReplicaList *list = &state->replicas_on[host];
  if (step > 0) {
    state->list_index[replica] = list->length;
    list_append(list, replica);
  } else {
    int32_t last = list->item[--list->length];
    list->item[state->list_index[replica]] = last;
    state->list_index[last] = state->list_index[replica];
  }
}

/* Moves a replica, or takes it from its host (-1). Checks neither constraints nor resources nor rules. */
void state_move(State *state, int32_t replica, int32_t to) {
  const Problem *problem = state->problem;
  int32_t from = state->host_of[replica];
  int64_t workload = problem->workload_of[problem->class_of[replica]];
  if (from == to) return;
  calls_update_counts(state, workload, from, to);
  if (from >= 0) change_host(state, replica, from, -1);
  if (to >= 0) change_host(state, replica, to, 1);
  state->host_of[replica] = to;
  calls_update_costs(state, workload, zone_at(problem, from), zone_at(problem, to));
}

/* The sum plus the co-location prices of a workload. */
static double add_colocation_cost(const State *state, int64_t workload, double sum) {
  const Problem *problem = state->problem;
  const int32_t *on_host = state->n_on_host + workload * problem->hosts;
  const int64_t *in_zone = state->n_in_zone + workload * problem->zones;
  for (int64_t zone = 0; zone < problem->zones; zone++)
    sum += problem->zone_colocation_price[workload] * (double)(in_zone[zone] * in_zone[zone]);
  for (int64_t host = 0; problem->host_colocation_price[workload] > 0 && host < problem->hosts; host++)
    sum += problem->host_colocation_price[workload] * on_host[host] * on_host[host];
  return sum;
}

/* Total cost of the placement, with broken limits and workloads wholly in one zone. */
double state_cost(const State *state) {
  const Problem *problem = state->problem;
  double sum = 0;
  for (int64_t entry = 0; entry < problem->edges * problem->zones; entry++) sum += state->zone_cost[entry];
  for (int64_t entry = 0; entry < problem->workloads * problem->zones; entry++) {
    int64_t workload = entry / problem->zones;
    if (problem->must_span_zones[workload] && state->n_in_zone[entry] == problem->replica_count[workload]) sum += problem->one_zone_price;
  }
  for (int64_t workload = 0; workload < problem->workloads; workload++) sum = add_colocation_cost(state, workload, sum);
  for (int64_t host = 0; host < problem->hosts; host++)
    sum += (problem->crowding_price * state->n_all_on_host[host] + problem->host_price[host]) * state->n_all_on_host[host];
  for (int64_t rule = 0; rule < problem->rules; rule++)
    for (int64_t domain = problem->domain_start[rule]; domain < problem->domain_start[rule + 1]; domain++)
      if (problem->rule_kind[rule] == RULE_PREFERENCE)
        sum += problem->rule_price[rule] * (double)(state->n_owners[domain] * state->n_counted[domain]);
  for (int64_t entry = 0; entry < problem->hosts * problem->resources; entry++) {
    double used = 1 - (double)state->free[entry] * problem->inverse_capacity[entry];
    if (problem->inverse_capacity[entry] > 0) sum += problem->balance_price * used * used;
  }
  return sum;
}
