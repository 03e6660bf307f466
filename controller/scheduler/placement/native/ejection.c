/* Places replicas without a host by ejecting others, after Y. Nagata and O. Braysy, A powerful route minimization heuristic, 2009: a
 * class that often found no host is expensive to eject. */
#include "search.h"

#define MAX_EJECTED 3
#define MAX_CANDIDATES 48  /* replicas of a host that are considered for ejection */
#define MAX_TRIED_HOSTS 64
#define MAX_TRIED_GROUPS 6 /* groups of two or three replicas of a host */
#define FAILURE_PRICE 8    /* of an ejected replica, times `failures` of its class; a random price below it decides between equals */
#define PERTURB_INTERVAL 4 /* ejections between two perturbations */
#define PERTURB_MOVES 12

/* Whether a host admits a class after the ejection of some replicas. With rules, the ejection is tried and undone. */
static int admits_after_ejection(State *state, int32_t class, int32_t host, const int32_t *ejected, int count) {
  const Problem *problem = state->problem;
  for (int64_t resource = 0; resource < problem->resources; resource++) {
    int64_t requested = requests_of(problem, class)[resource], available = state->free[host * problem->resources + resource];
    for (int index = 0; index < count; index++) available += requests_of(problem, class_at(state, ejected[index]))[resource];
    if (requested > 0 && available < requested) return 0;
  }
  int depends_on_rules = has_rules(problem, class), is_admitted = 1;
  for (int index = 0; index < count; index++) depends_on_rules |= has_rules(problem, class_at(state, ejected[index]));
  if (!depends_on_rules) return 1;
  Trial trial = {.state = state};
  for (int index = 0; is_admitted && index < count; index++) is_admitted = try_move(&trial, ejected[index], -1);
  is_admitted = is_admitted && state_admits(state, class, -1, host);
  undo_trial(&trial);
  return is_admitted;
}

typedef struct {
  int64_t price;
  int32_t host, size, ejected[MAX_EJECTED];
} Ejection;

static void set_ejection(Ejection *ejection, int64_t price, int32_t host, const int32_t *ejected, int size) {
  *ejection = (Ejection){.price = price, .host = host, .size = size};
  memcpy(ejection->ejected, ejected, (size_t)size * sizeof *ejected);
}

/* Replaces `best` if the ejection of two or three random candidates admits a class at a lower price. */
static void try_random_group(State *state, int32_t class, int32_t host, const int64_t *failures, int32_t *candidates, int count,
                             Ejection *best) {
  int64_t price = random_below(state, FAILURE_PRICE);
  for (int size = 1; size <= MAX_EJECTED && size <= count; size++) { /* the first `size` candidates are ejected */
    int picked = size - 1 + (int)random_below(state, count - size + 1);
    int32_t replica = candidates[picked];
    candidates[picked] = candidates[size - 1];
    candidates[size - 1] = replica;
    price += failures[class_at(state, replica)] * FAILURE_PRICE;
    if (price >= best->price) return;
    if (size > 1 && admits_after_ejection(state, class, host, candidates, size)) {
      set_ejection(best, price, host, candidates, size);
      return;
    }
  }
}

/* Replaces `best` if the ejection of one replica of a host, else of two or three, admits a class at a lower price. */
static void find_ejection(State *state, int32_t class, int32_t host, const int64_t *failures, Ejection *best) {
  int32_t candidates[MAX_CANDIDATES];
  ReplicaList *list = &state->replicas_on[host];
  int count = list->length < MAX_CANDIDATES ? list->length : MAX_CANDIDATES;
  int32_t first = list->length > count ? (int32_t)random_below(state, list->length) : 0;
  for (int index = 0; index < count; index++) candidates[index] = list->item[(index + first) % list->length];
  for (int index = 0; index < count; index++) {
    int64_t price = failures[class_at(state, candidates[index])] * FAILURE_PRICE + random_below(state, FAILURE_PRICE);
    if (price < best->price && admits_after_ejection(state, class, host, &candidates[index], 1))
      set_ejection(best, price, host, &candidates[index], 1);
  }
  for (int tried = 0; count > 1 && best->host != host && tried < MAX_TRIED_GROUPS; tried++)
    try_random_group(state, class, host, failures, candidates, count, best);
}

/* Moves random replicas to random hosts that admit them, at any cost, to redistribute free capacity. */
static void perturb(State *state) {
  for (int move = 0; move < PERTURB_MOVES; move++) {
    int32_t replica = (int32_t)random_below(state, state->problem->replicas), host = (int32_t)random_below(state, state->problem->hosts);
    if (state->host_of[replica] >= 0 && state->host_of[replica] != host && may_move(state, replica, host)) state_move(state, replica, host);
  }
}

/* Whether no host without movable replicas has the constraints and resources for a class; rules do not count. */
static int fits_no_host(const State *state, int32_t class) {
  const Problem *problem = state->problem;
  for (int32_t host = 0; host < problem->hosts; host++)
    if (is_allowed(problem, class, host) && fits(problem, class, problem->free + (int64_t)host * problem->resources)) return 0;
  return 1;
}

/* Replicas without a host, except those that fit no host. */
typedef struct {
  int32_t *item;
  int64_t length;
  int64_t *failures;       /* [class] 1 + number of its ejection attempts; -1 if it fits no host */
  int32_t *failed_attempt; /* [class] last attempt in which no host admitted a replica of it */
} Pool;

/* Places replicas of the pool that a host admits. After a failure it skips the class for the rest of the attempt. */
static void place_pool(Search *search, Pool *pool, int32_t attempt) {
  State *state = search->state;
  for (int64_t index = pool->length - 1; index >= 0; index--) {
    int32_t replica = pool->item[index], class = class_at(state, replica);
    int32_t host = pool->failed_attempt[class] == attempt ? -1 : best_host(search, replica, -1);
    if (host < 0) {
      pool->failed_attempt[class] = attempt;
      continue;
    }
    state_move(state, replica, host);
    pool->item[index] = pool->item[--pool->length];
  }
}

/* Places a random replica of the pool on the tried host with the cheapest ejection, if any; the ejected replicas join the pool. */
static void eject(State *state, Pool *pool) {
  const Problem *problem = state->problem;
  int64_t index = random_below(state, pool->length);
  int32_t replica = pool->item[index], class = class_at(state, replica), first = (int32_t)random_below(state, problem->hosts);
  Ejection best = {.price = INT64_MAX, .host = -1};
  pool->failures[class]++;
  for (int32_t offset = 0, tried = 0; offset < problem->hosts && tried < MAX_TRIED_HOSTS; offset++) {
    int32_t host = (first + offset) % (int32_t)problem->hosts;
    if (!is_allowed(problem, class, host) || !state->replicas_on[host].length) continue;
    tried++;
    find_ejection(state, class, host, pool->failures, &best);
  }
  if (best.host < 0) return;
  pool->item[index] = pool->item[--pool->length];
  for (int ejected = 0; ejected < best.size; ejected++) {
    state_move(state, best.ejected[ejected], -1);
    pool->item[pool->length++] = best.ejected[ejected];
  }
  state_move(state, replica, best.host);
}

/* Ejects replicas for those without a host, and places the ejected elsewhere; keeps the placement of most replicas. */
void place_by_ejection(Search *search, int64_t attempts) {
  State *state = search->state;
  const Problem *problem = state->problem;
  int32_t *best = allocate(problem->replicas, sizeof(int32_t));
  Pool pool = {.item = allocate(problem->replicas, sizeof(int32_t)),
               .failures = allocate(problem->classes, sizeof(int64_t)),
               .failed_attempt = allocate(problem->classes, sizeof(int32_t))};
  for (int32_t class = 0; class < problem->classes; class++) pool.failures[class] = fits_no_host(state, class) ? -1 : 1;
  for (int32_t replica = 0; replica < problem->replicas; replica++)
    if (state->host_of[replica] < 0 && pool.failures[class_at(state, replica)] > 0) pool.item[pool.length++] = replica;
  int64_t most_placed = state->n_placed;
  copy_hosts(best, state);
  for (int32_t attempt = 1; attempt <= attempts && pool.length && !is_past_deadline(search); attempt++) {
    eject(state, &pool);
    if (attempt % PERTURB_INTERVAL == 0) perturb(state);
    place_pool(search, &pool, attempt);
    if (state->n_placed <= most_placed) continue;
    most_placed = state->n_placed;
    copy_hosts(best, state);
  }
  if (state->n_placed < most_placed) restore_hosts(state, best);
  free(best);
  free(pool.item);
  free(pool.failures);
  free(pool.failed_attempt);
}
