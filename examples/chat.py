"""A chat agent: streams its answer, uses tools, and waits for a person before it spends money.

    curl -s localhost:2024/runs/wait -d '{"assistant_id": "chat", "input": {"messages": "17 * 23"}}'

Say "order 3 lamps" on a thread: the run stops with an interrupt, the thread's status becomes
"interrupted", and ``{"command": {"resume": true}}`` (or false, or a reason) lets it go on.
"""

import ast
import operator
from collections.abc import Callable

from langchain_core.messages import SystemMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt
from model import RuleModel

OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@tool
def calculate(expression: str) -> str:
    """Calculates a sum of numbers with + - * / and parentheses."""
    return f"{expression.strip()} = {value(ast.parse(expression, mode='eval').body):g}"


@tool
def place_order(amount: int, item: str) -> str:
    """Orders something, once a person has approved it."""
    approval = interrupt({"question": f"Order {amount} {item}?", "amount": amount, "item": item})
    return f"{amount} {item} ordered" if approval is True else f"not ordered: {approval}"


def value(node: ast.expr) -> float:
    """The value of a parsed expression; anything but arithmetic is refused."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](value(left), value(right))
    raise ValueError("only numbers and + - * / are understood")


TOOLS = [calculate, place_order]
MODEL = RuleModel().bind_tools(TOOLS)


async def agent(state: MessagesState) -> dict[str, list[object]]:
    """Asks the model for the next message."""
    prompt = [SystemMessage("Be brief."), *state["messages"]]
    return {"messages": [await MODEL.ainvoke(prompt)]}


builder = StateGraph(MessagesState)
builder.add_node("agent", agent)
builder.add_node("tools", ToolNode(TOOLS))
builder.add_edge(START, "agent")
builder.add_conditional_edges("agent", tools_condition)
builder.add_edge("tools", "agent")
graph = builder.compile()
