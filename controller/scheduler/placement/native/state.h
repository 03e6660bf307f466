/* A placement: the host of each replica, its cost, and the change of the cost by a move. */
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "problem.h"

typedef struct { int32_t *item, length, capacity; } ReplicaList;

/* Fields n_... are numbers of replicas. All but n_placed include fixed replicas. */
typedef struct {
  const Problem *problem;
  int32_t *host_of;             /* [replica] */
  ReplicaList *replicas_on;     /* [host] movable replicas */
  int32_t *list_index;          /* [replica] in the list of its host */
  int64_t *free;                /* [host][resource] */
  int32_t *n_on_host;           /* [workload][host] replicas */
  int64_t *n_in_zone;           /* [workload][zone] replicas */
  int64_t *n_unzoned;           /* [workload] replicas on nodes without a zone label */
  int32_t *n_all_on_host;       /* [host] replicas of all workloads */
  int64_t *same_host_calls;     /* [edge][zone] sum of count_same_host_calls over the zone's hosts */
  double *cost_to_all;          /* [edge][zone] cost of one caller there to all replicas of the callee */
  double *zone_cost;            /* [edge][zone] cost_from_zone of the placement */
  int64_t *n_counted, *n_owners; /* [domain of a rule] pods that the rule counts, and that carry it */
  int64_t *min_counted;         /* [rule] least n_counted of the eligible domains */
  int64_t n_placed;             /* movable replicas that have a host */
  uint64_t random_state;
} State;

/* A placement in which no movable replica has a host. */
State *state_new(const Problem *problem, uint64_t seed);
void state_free(State *state);

/* Changes of the cost if a replica moves: of calls and of workloads in one zone that must span zones; of all else; and both. */
double state_network_delta(const State *state, int32_t class, int32_t from, int32_t to);
double state_other_delta(const State *state, int32_t class, int32_t from, int32_t to);
double state_delta(const State *state, int32_t replica, int32_t to);
double state_cost(const State *state);
void state_move(State *state, int32_t replica, int32_t to);

/* calls.c */
void calls_init(State *state);
double calls_delta(const State *state, int64_t workload, int32_t from, int32_t to);
void calls_update_counts(State *state, int64_t workload, int32_t from, int32_t to);
void calls_update_costs(State *state, int64_t workload, int64_t zone_from, int64_t zone_to);

/* rules.c */
void rules_init(State *state);
int rules_allow(const State *state, int32_t class, int32_t from, int32_t to);
int rules_allow_leaving(const State *state, int32_t class, int32_t from);
double rules_delta(const State *state, int32_t class, int32_t from, int32_t to);
void rules_update_counts(State *state, int32_t class, int32_t host, int step);

/* Whether a host admits a class: by its constraints, free resources, and rules if the replica leaves `from`. */
static inline int state_admits(const State *state, int32_t class, int32_t from, int32_t host) {
  const Problem *problem = state->problem;
  return is_allowed(problem, class, host) && fits(problem, class, state->free + (int64_t)host * problem->resources) &&
         rules_allow(state, class, from, host);
}

/* xorshift64* */
static inline uint64_t random_bits(State *state) {
  state->random_state ^= state->random_state << 13;
  state->random_state ^= state->random_state >> 7;
  state->random_state ^= state->random_state << 17;
  return state->random_state * 0x2545F4914F6CDD1DULL;
}
static inline int64_t random_below(State *state, int64_t n) { return (int64_t)(((random_bits(state) >> 32) * (uint64_t)n) >> 32); }
static inline double random_unit(State *state) { return (double)(random_bits(state) >> 11) * 0x1.0p-53; }

/* Returns new memory, or ends the process: an allocation deep in the search has no other way to report that none is left. */
static inline void *require_memory(void *memory) {
  if (memory) return memory;
  fputs("netaware: no memory for the search of a plan\n", stderr);
  abort();
}
static inline void *allocate(int64_t n, size_t size) { return require_memory(calloc((size_t)(n > 0 ? n : 1), size)); } /* zeroed */
