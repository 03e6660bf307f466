/* Improves a placement by simulated annealing, after S. Kirkpatrick et al., Optimization by simulated annealing, 1983. */
#include "search.h"

#include <math.h>

/* Temperatures, as ratios to the typical change of the cost by a step. Traffic has heavy tails: with a lower first temperature the
 * heaviest edges stay in the zones where they started. */
#define FIRST_TEMPERATURE 8.0
#define LAST_TEMPERATURE 0.003
#define FIRST_TEMPERATURE_ACROSS_LIMITS 0.3 /* ratio to the price of a violation: whole chains of workloads may cross a limit */
#define TEMPERATURE_INTERVAL 256            /* steps between two changes of the temperature */
#define CLOCK_INTERVAL 2048                 /* steps between two checks of the deadline */
#define MAX_TIME_RATIO 0.9                  /* share of the time left that annealing may use */
#define MAX_FOLLOWER_TRIES 24               /* hosts that are tried for a follower */
#define FOLLOWER_INTERVAL 10                /* one in so many moves of replicas with rules takes followers along, on average */
#define ADJACENT_SIXTEENTHS 14              /* this many sixteenths of proposals follow an edge to an adjacent workload's replica */
#define MIN_CROSSING_RATIO 0.25             /* a change of the cost by more than this share of limit_price crosses a limit */
#define MAX_PROPOSALS 4000                  /* for typical_delta */
#define MAX_DELTAS 500

static int is_accepted(State *state, double delta, double temperature) {
  return delta <= 0 || random_unit(state) < exp(-delta / temperature);
}

/* Keeps the moves if all were possible and the change is accepted; returns the change of the cost. */
static double finish_trial(Trial *trial, int is_possible, double temperature) {
  if (is_possible && is_accepted(trial->state, trial->delta, temperature)) return trial->delta;
  undo_trial(trial);
  return 0;
}

/* Proposes a host for a replica: mostly the host of an adjacent workload's replica, else any. -1 if the adjacent replica has none. */
static int32_t propose_host(State *state, int32_t replica) {
  const Problem *problem = state->problem;
  int64_t workload = workload_at(state, replica), start = problem->edge_end_start[workload];
  int64_t edges = problem->edge_end_start[workload + 1] - start;
  if (edges && (random_bits(state) & 15) < ADJACENT_SIXTEENTHS) {
    int64_t other = adjacent_workload(problem, problem->edge_end[start + random_below(state, edges)]);
    int64_t members = problem->member_start[other + 1] - problem->member_start[other];
    int64_t fixed = problem->fixed_start[other + 1] - problem->fixed_start[other];
    int64_t pick = random_below(state, members + fixed + 1);
    if (pick < members) return state->host_of[problem->member[problem->member_start[other] + pick]];
    if (pick < members + fixed) return problem->fixed_host[problem->fixed_start[other] + pick - members];
  }
  return (int32_t)random_below(state, problem->hosts);
}

/* Whether the free resources of two hosts suffice after replicas of two classes change places. */
static int swap_fits(const State *state, int32_t class_a, int32_t class_b, int32_t host_a, int32_t host_b) {
  const Problem *problem = state->problem;
  int64_t resources = problem->resources;
  const int64_t *requests_a = requests_of(problem, class_a), *requests_b = requests_of(problem, class_b);
  const int64_t *free_a = state->free + host_a * resources, *free_b = state->free + host_b * resources;
  for (int64_t resource = 0; resource < resources; resource++) {
    int64_t more = requests_a[resource] - requests_b[resource];
    if ((more > 0 && free_b[resource] < more) || (more < 0 && free_a[resource] < -more)) return 0;
  }
  return 1;
}

/* Swaps two replicas, or moves neither; returns the change of the cost. */
static double swap_replicas(State *state, int32_t a, int32_t b, double temperature) {
  int32_t host_a = state->host_of[a], host_b = state->host_of[b], class_a = class_at(state, a), class_b = class_at(state, b);
  if (class_a == class_b || !is_allowed(state->problem, class_a, host_b) || !is_allowed(state->problem, class_b, host_a)) return 0;
  /* Of `a`, which first moves to no host, try_move checks whether it may leave. */
  if (!swap_fits(state, class_a, class_b, host_a, host_b) || !rules_allow_leaving(state, class_b, host_b)) return 0;
  Trial trial = {.state = state};
  return finish_trial(&trial, try_move(&trial, a, -1) && try_move(&trial, b, host_a) && try_move(&trial, a, host_b), temperature);
}

/* Gives the host of a placed replica to an unplaced one, or moves neither; returns the change of the cost. */
static double replace_replica(State *state, int32_t unplaced, int32_t placed, double temperature) {
  int32_t host = state->host_of[placed];
  Trial trial = {.state = state};
  return finish_trial(&trial, try_move(&trial, placed, -1) && try_move(&trial, unplaced, host), temperature);
}

static int is_owner(const Problem *problem, int32_t class, int64_t rule) {
  for (int64_t entry = problem->role_start[class]; entry < problem->role_start[class + 1]; entry++)
    if (problem->role_rule[entry] == rule && (problem->role[entry] & OWNER)) return 1;
  return 0;
}

/* Finds the replicas in a domain that carry this affinity rule, except one; returns their number, -1 if there are too many. */
static int find_followers(const State *state, int64_t rule, int32_t domain, int32_t except, int32_t *followers) {
  int count = 0;
  for (int32_t host = 0; host < state->problem->hosts; host++) {
    const ReplicaList *list = &state->replicas_on[host];
    if (domain_at(state->problem, rule, host) != domain) continue;
    for (int32_t index = 0; index < list->length; index++) {
      int32_t replica = list->item[index];
      if (replica == except || !is_owner(state->problem, class_at(state, replica), rule)) continue;
      if (count == MAX_FOLLOWERS) return -1;
      followers[count++] = replica;
    }
  }
  return count;
}

/* The last affinity rule that counts a class and whose domain the class leaves; -1 if there is none. */
static int64_t find_left_affinity(const Problem *problem, int32_t class, int32_t from, int32_t to) {
  int64_t left = -1;
  for (int64_t entry = problem->role_start[class]; entry < problem->role_start[class + 1]; entry++) {
    int64_t rule = problem->role_rule[entry];
    int32_t domain = domain_at(problem, rule, from);
    int is_counted_affinity = problem->rule_kind[rule] == RULE_AFFINITY && (problem->role[entry] & COUNTED);
    if (is_counted_affinity && domain >= 0 && domain != domain_at(problem, rule, to)) left = rule;
  }
  return left;
}

/* Moves a replica to another domain, and the replicas that must share its domain to the same or a random host. */
static double move_with_followers(State *state, int32_t replica, int32_t to, double temperature) {
  const Problem *problem = state->problem;
  int32_t class = class_at(state, replica), from = state->host_of[replica], followers[MAX_FOLLOWERS];
  int64_t rule = find_left_affinity(problem, class, from, to);
  if (rule < 0) return 0;
  int count = find_followers(state, rule, domain_at(problem, rule, from), replica, followers), is_possible = count > 0;
  Trial trial = {.state = state};
  for (int index = 0; is_possible && index < count; index++) is_possible = try_move(&trial, followers[index], -1);
  is_possible = is_possible && rules_allow_leaving(state, class, from) && try_move(&trial, replica, to);
  for (int index = 0; is_possible && index < count; index++) {
    is_possible = try_move(&trial, followers[index], to);
    for (int tries = 1; !is_possible && tries < MAX_FOLLOWER_TRIES; tries++)
      is_possible = try_move(&trial, followers[index], (int32_t)random_below(state, problem->hosts));
  }
  return finish_trial(&trial, is_possible, temperature);
}

/* Tries one change of the placement, and returns the change of the cost:
 *
 *   move_with_followers  for some replicas with rules
 *   state_move           to a host that admits the replica
 *   swap_replicas        with a replica on a host that does not
 *   replace_replica      the same for a replica without a host */
static double try_change(State *state, double temperature) {
  const Problem *problem = state->problem;
  int32_t replica = (int32_t)random_below(state, problem->replicas), to = propose_host(state, replica);
  int32_t class = class_at(state, replica), from = state->host_of[replica];
  if (to < 0 || to == from) return 0;
  if (from >= 0 && has_rules(problem, class) && random_below(state, FOLLOWER_INTERVAL) == 0)
    return move_with_followers(state, replica, to, temperature);
  if (may_move(state, replica, to)) {
    double delta = from < 0 ? 0 : state_delta(state, replica, to);
    if (!is_accepted(state, delta, temperature)) return 0;
    state_move(state, replica, to);
    return delta;
  }
  const ReplicaList *list = &state->replicas_on[to];
  if (!list->length || !is_allowed(problem, class, to)) return 0;
  int32_t other = list->item[random_below(state, list->length)];
  return from < 0 ? replace_replica(state, replica, other, temperature) : swap_replicas(state, replica, other, temperature);
}

/* Mean size of the changes of the cost by proposed moves, except 0 and moves across a limit; 1 if there are none. */
static double typical_delta(State *state) {
  const Problem *problem = state->problem;
  double sum = 0, count = 0;
  for (int proposal = 0; proposal < MAX_PROPOSALS && count < MAX_DELTAS; proposal++) {
    int32_t replica = (int32_t)random_below(state, problem->replicas), to = propose_host(state, replica);
    int32_t class = class_at(state, replica), from = state->host_of[replica];
    if (to < 0 || from < 0 || to == from || !is_allowed(problem, class, to)) continue;
    double delta = fabs(state_delta(state, replica, to));
    if (delta > MIN_CROSSING_RATIO * problem->limit_price || delta == 0) continue;
    sum += delta;
    count++;
  }
  return count > 0 ? sum / count : 1;
}

/* Anneals, and returns the change of the cost. Cools by the ratio of steps done, or of time used if that is higher. */
static double anneal(Search *search, int64_t steps, double first_temperature, double last_temperature) {
  double began = now_s(), budget_s = MAX_TIME_RATIO * (search->ends_at - began);
  double cost = 0, temperature = first_temperature, time_ratio = 0, done = 0;
  for (int64_t step = 0; step < steps && done < 1; step++) {
    if (step % CLOCK_INTERVAL == CLOCK_INTERVAL - 1) time_ratio = budget_s > 0 ? (now_s() - began) / budget_s : 1;
    if (step % TEMPERATURE_INTERVAL == TEMPERATURE_INTERVAL - 1) {
      done = fmax((double)step / (double)steps, time_ratio);
      temperature = first_temperature * pow(last_temperature / first_temperature, done);
    }
    cost += try_change(search->state, temperature);
  }
  return cost;
}

/* Anneals, and keeps the result if it costs no more or places more replicas. */
void anneal_if_better(Search *search, int64_t steps, int may_violate_limits) {
  State *state = search->state;
  int32_t *before = allocate(state->problem->replicas, sizeof(int32_t));
  copy_hosts(before, state);
  int64_t placed_before = state->n_placed;
  double first_temperature = may_violate_limits ? FIRST_TEMPERATURE_ACROSS_LIMITS * state->problem->limit_price
                                            : FIRST_TEMPERATURE * typical_delta(state);
  double change = anneal(search, steps, first_temperature, LAST_TEMPERATURE * typical_delta(state));
  if (change > 0 && state->n_placed <= placed_before) restore_hosts(state, before);
  free(before);
}
