/* The search: place replicas one by one, eject replicas for those without a host, anneal, and descend to a local optimum.
 *
 * Numbers of steps limit the work, so that the same problem and seed give the same placement, unless the deadline cuts the search
 * short. Plain C without Python's headers: one library serves every Python, and ctypes releases the interpreter's lock. */
#define _POSIX_C_SOURCE 199309L
#include "search.h"

#include <math.h>
#include <time.h>

/* Attempts to place replicas without a host by ejecting others: before annealing, and in runs without annealing. */
#define EJECTION_ATTEMPTS 4000
#define DESCENT_EJECTION_ATTEMPTS 200
#define DESCENT_PASSES 8
/* Largest replicas times hosts for which a descent precedes annealing, and for which one follows it. */
#define MAX_DESCENT_BEFORE 200000
#define MAX_DESCENT_AFTER 20000000

double now_s(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int is_past_deadline(const Search *search) { return now_s() > search->ends_at; }

/* Marks the hosts with replicas of adjacent workloads: their change of the cost differs from that of their zone. */
static void mark_neighbours(Search *search, int64_t workload) {
  const State *state = search->state;
  const Problem *problem = state->problem;
  search->call++;
  for (int64_t entry = problem->edge_end_start[workload]; entry < problem->edge_end_start[workload + 1]; entry++) {
    int64_t other = adjacent_workload(problem, problem->edge_end[entry]);
    for (int64_t member = problem->member_start[other]; member < problem->member_start[other + 1]; member++) {
      int32_t host = state->host_of[problem->member[member]];
      if (host >= 0) search->neighbour_call[host] = search->call;
    }
    for (int64_t fixed = problem->fixed_start[other]; fixed < problem->fixed_start[other + 1]; fixed++)
      search->neighbour_call[problem->fixed_host[fixed]] = search->call;
  }
}

/* `state_network_delta` of an unplaced replica. Hosts of a zone without adjacent workloads share one result. */
static double cached_network_delta(Search *search, int32_t class, int32_t host) {
  int32_t zone = search->state->problem->zone_of[host];
  if (search->neighbour_call[host] == search->call) return state_network_delta(search->state, class, -1, host);
  if (search->zone_delta_call[zone] != search->call) {
    search->zone_delta[zone] = state_network_delta(search->state, class, -1, host);
    search->zone_delta_call[zone] = search->call;
  }
  return search->zone_delta[zone];
}

/* The cheapest host for an unplaced replica, in one zone unless that is -1; -1 if no host admits the replica. */
int32_t best_host(Search *search, int32_t replica, int64_t zone) {
  const State *state = search->state;
  const Problem *problem = state->problem;
  int32_t class = class_at(state, replica), best = -1;
  double least = INFINITY;
  mark_neighbours(search, problem->workload_of[class]);
  const uint8_t *allowed = problem->allowed + (int64_t)problem->row_of[class] * problem->hosts;
  for (int32_t host = 0; host < problem->hosts; host++) {
    if (!allowed[host] || (zone >= 0 && problem->zone_of[host] != zone)) continue;
    if (!fits(problem, class, state->free + (int64_t)host * problem->resources)) continue;
    double delta = cached_network_delta(search, class, host) + state_other_delta(state, class, -1, host);
    if (delta >= least || !rules_allow(state, class, -1, host)) continue;
    least = delta;
    best = host;
  }
  return best;
}

/* Moves a replica, or takes it from its host (-1), if constraints, resources and rules allow it. */
int try_move(Trial *trial, int32_t replica, int32_t to) {
  State *state = trial->state;
  int32_t from = state->host_of[replica];
  if (to < 0 ? !rules_allow_leaving(state, class_at(state, replica), from) : !may_move(state, replica, to)) return 0;
  trial->replica[trial->moves] = replica;
  trial->from[trial->moves++] = from;
  trial->delta += state_delta(state, replica, to);
  state_move(state, replica, to);
  return 1;
}

void undo_trial(Trial *trial) {
  while (trial->moves--) state_move(trial->state, trial->replica[trial->moves], trial->from[trial->moves]);
}

void restore_hosts(State *state, const int32_t *host_of) {
  for (int32_t replica = 0; replica < state->problem->replicas; replica++) state_move(state, replica, -1);
  for (int32_t replica = 0; replica < state->problem->replicas; replica++) state_move(state, replica, host_of[replica]);
}

typedef struct { double key; int32_t edge; } RankedEdge;

static int compare_edges(const void *a, const void *b) {
  const RankedEdge *first = a, *second = b;
  if (first->key != second->key) return first->key < second->key ? -1 : 1;
  return first->edge - second->edge;
}

/* Appends all replicas of two workloads in turn; the workloads may be the same. Workloads that are ordered already are left out. */
static int64_t append_members(const Problem *problem, const int32_t workloads[2], uint8_t *is_ordered, int32_t *order, int64_t length) {
  int64_t start[2] = {0, 0}, count[2] = {0, 0};
  for (int side = 0; side < 2; side++) {
    if (is_ordered[workloads[side]]) continue;
    is_ordered[workloads[side]] = 1;
    start[side] = problem->member_start[workloads[side]];
    count[side] = problem->member_start[workloads[side] + 1] - start[side];
  }
  for (int64_t member = 0; member < count[0] || member < count[1]; member++)
    for (int side = 0; side < 2; side++)
      if (member < count[side]) order[length++] = problem->member[start[side] + member];
  return length;
}

/* Orders replicas along the heaviest edges, in turn from the caller and the callee; replicas without edges come last. Random factors
 * from 0.8 to 1.2 of the weights give each run another order. */
static void order_by_traffic(State *state, int32_t *order) {
  const Problem *problem = state->problem;
  RankedEdge *ranked = allocate(problem->edges, sizeof(RankedEdge));
  uint8_t *is_ordered = allocate(problem->workloads, 1);
  for (int32_t edge = 0; edge < problem->edges; edge++)
    ranked[edge] = (RankedEdge){-problem->weight[edge] * (0.8 + 0.4 * random_unit(state)), edge};
  qsort(ranked, (size_t)problem->edges, sizeof *ranked, compare_edges);
  int64_t length = 0;
  for (int64_t rank = 0; rank < problem->edges; rank++) {
    int32_t ends[2] = {problem->caller[ranked[rank].edge], problem->callee[ranked[rank].edge]};
    length = append_members(problem, ends, is_ordered, order, length);
  }
  for (int32_t workload = 0; workload < problem->workloads; workload++)
    length = append_members(problem, (int32_t[2]){workload, workload}, is_ordered, order, length);
  free(ranked);
  free(is_ordered);
}

/* Places the replicas that have no host, in one zone unless that is -1, until the deadline. */
static void place_in_order(Search *search, const int32_t *order, int64_t zone) {
  State *state = search->state;
  for (int64_t rank = 0; rank < state->problem->replicas; rank++) {
    int32_t replica = order[rank];
    if (state->host_of[replica] >= 0) continue;
    int32_t host = best_host(search, replica, zone);
    if (host >= 0) state_move(state, replica, host);
    if (rank % DEADLINE_INTERVAL == 0 && is_past_deadline(search)) return;
  }
}

/* Places replicas on their hints, then those that fit into the zone `start_zone` unless that is -1, then the others. */
static void place_all(Search *search, const int32_t *hints, int64_t ejection_attempts, int64_t start_zone) {
  State *state = search->state;
  const Problem *problem = state->problem;
  int32_t *order = allocate(problem->replicas, sizeof(int32_t));
  for (int32_t replica = 0; replica < problem->replicas; replica++)
    if (hints[replica] >= 0 && may_move(state, replica, hints[replica])) state_move(state, replica, hints[replica]);
  order_by_traffic(state, order);
  if (start_zone >= 0) place_in_order(search, order, start_zone);
  place_in_order(search, order, -1);
  free(order);
  if (state->n_placed < problem->replicas) place_by_ejection(search, ejection_attempts);
}

/* Moves each replica to its best host, until no move helps, DESCENT_PASSES are done, or the deadline is past. */
static void descend(Search *search) {
  State *state = search->state;
  for (int pass = 0, has_changed = 1; pass < DESCENT_PASSES && has_changed; pass++) {
    has_changed = 0;
    for (int32_t replica = 0; replica < state->problem->replicas; replica++) {
      int32_t from = state->host_of[replica];
      if (replica % DEADLINE_INTERVAL == 0 && is_past_deadline(search)) return;
      if (from < 0) continue;
      state_move(state, replica, -1);
      double before = state_delta(state, replica, from);
      int32_t to = best_host(search, replica, -1);
      double after = to < 0 ? INFINITY : state_delta(state, replica, to);
      state_move(state, replica, from);
      if (to == from || after >= before - 1e-9 * fabs(before) || !rules_allow(state, class_at(state, replica), from, to)) continue;
      state_move(state, replica, to);
      has_changed = 1;
    }
  }
}

/* Places all replicas, see `NativeProblem.search` in native_search.py; returns the cost of the placement. `host_of` has a hint or -1
 * for each replica before the call, and its host or -1 after. */
double plan_search(const Problem *problem, int32_t *host_of, uint64_t seed, int64_t steps, int64_t start_zone, int64_t may_violate_limits,
                   double time_limit_s) {
  State *state = state_new(problem, seed);
  Search search = {.state = state,
                   .ends_at = now_s() + time_limit_s,
                   .neighbour_call = allocate(problem->hosts, sizeof(int32_t)),
                   .zone_delta = allocate(problem->zones, sizeof(double)),
                   .zone_delta_call = allocate(problem->zones, sizeof(int32_t))};
  if (problem->replicas && problem->hosts) {
    place_all(&search, host_of, steps ? EJECTION_ATTEMPTS : DESCENT_EJECTION_ATTEMPTS, start_zone);
    /* In small problems a local optimum of the start may be better than the result of annealing. */
    if (problem->replicas * problem->hosts <= MAX_DESCENT_BEFORE) descend(&search);
    if (steps) anneal_if_better(&search, steps, may_violate_limits != 0);
    if (problem->replicas * problem->hosts <= MAX_DESCENT_AFTER) descend(&search);
  }
  copy_hosts(host_of, state);
  double cost = state_cost(state);
  state_free(state);
  free(search.neighbour_call);
  free(search.zone_delta);
  free(search.zone_delta_call);
  return cost;
}
