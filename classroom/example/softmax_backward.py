"""A task of your own, in one file: copy it, change it, and name its folder with ``--tasks``."""

from classroom.tasks.task import Task
from lnbook.exercises.expect import expect_close


class SoftmaxBackward(Task):
    """The backward pass of a softmax."""  # the heading that students see

    id, minutes, points = "own-softmax-backward", 20, 4  # points are split evenly over the checks
    rtol = 1e-12  # what the judge below allows; the public example is held to it as well

    def draw(self, random):
        """What differs from draw to draw, and what students read."""
        self.variant = self.scale, self.sign = random.randrange(2, 40), random.choice(["", "-"])
        self.example = "(np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 2.0]))"  # of the arguments
        self.statement = (
            "Each row of `x` becomes y, with $y_i = e^{a_i} / \\sum_j e^{a_j}$ and $a ="
            f" {self.sign}x / {self.scale}$. `dy` is the gradient of a loss with respect to y."
            " Write `softmax_backward(dy, x)`, which returns the gradient with respect to x."
        )
        self.head = '''def softmax_backward(dy, x):
    """Gradient of the loss with respect to x.

    dy, x: shape (..., D).
    Returns dx, of x's shape.
    """'''
        self.body = f"""
    a = {self.sign}x / {self.scale}
    y = np.exp(a - a.max(axis=-1, keepdims=True))
    y = y / y.sum(axis=-1, keepdims=True)
    dx = y * (dy - (dy * y).sum(axis=-1, keepdims=True))
    return {self.sign}dx / {self.scale}"""

    def cases(self):
        """Of each check its title, and what else ``ask`` takes."""
        return (
            ("a matrix", (3, 5), 1.0),
            ("one row", (6,), 1.0),
            ("large numbers, whose exp is Inf or 0", (2, 4), 1e3 * self.scale),
        )

    def ask(self, rng, shape, size):
        """The call of a check; ``solved`` adds what the solution returns, as ``expected``."""
        return self.solved(
            {"dy": rng.standard_normal(shape), "x": size + rng.standard_normal(shape)}
        )

    def judge(self, found, expected, **_):
        """Raise Mismatch, as ``lnbook.exercises.expect`` does, unless ``found`` is right."""
        expect_close(found, expected, self.rtol, "dx")

    def slips(self):
        """The solution with a text replaced, and the sentence that names this mistake."""
        yield " - (dy * y).sum(axis=-1, keepdims=True)", "", "the path through the sum is missing"
        yield f"dx / {self.scale}", "dx", "the inner derivative is missing"
        yield "a - a.max(axis=-1, keepdims=True)", "a", "the exponential is Inf or 0"
